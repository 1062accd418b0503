import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Instant;
import java.util.Arrays;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Kafka's producer when an outage meets it, as resuming.py is ours. Janino compiles it as it starts: see Paced. */
public class Resuming {
    static final int ROW_BYTES = 1 << 10;

    public static void main(String[] given) throws Exception {
        final String bootstrap = given[0], topic = given[1];
        final int partitions = Integer.parseInt(given[2]);

        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("linger.ms", "0");
        KafkaProducer producer = new KafkaProducer(settings, new ByteArraySerializer(), new ByteArraySerializer());

        int[] all = new int[partitions];
        for (int each = 0; each < partitions; each++) all[each] = each;
        write(producer, topic, all, 0);
        System.out.println("ready");
        String[] told = new BufferedReader(new InputStreamReader(System.in)).readLine().trim().split(" ");
        int[] led = new int[told.length - 1];
        for (int each = 0; each < led.length; each++) led[each] = Integer.parseInt(told[each + 1]);
        System.out.println(Arrays.toString(write(producer, topic, led, Long.parseLong(told[0]))));
        producer.close();
    }

    /** Writes a row to each, and waits for all. Returns when each was acknowledged: nanoseconds since then. */
    static long[] write(KafkaProducer producer, String topic, int[] partitions, final long sinceNs) throws Exception {
        byte[] row = new byte[ROW_BYTES];
        new Random().nextBytes(row);
        final long[] tookNs = new long[partitions.length];
        final AtomicReference failure = new AtomicReference();
        for (int each = 0; each < partitions.length; each++) {
            final int number = each;
            producer.send(new ProducerRecord(topic, Integer.valueOf(partitions[each]), null, row), new Callback() {
                public void onCompletion(RecordMetadata place, Exception error) {
                    Instant now = Instant.now();
                    tookNs[number] = now.getEpochSecond() * 1000000000L + now.getNano() - sinceNs;
                    if (error != null) failure.set(error);
                }
            });
        }
        producer.flush();
        if (failure.get() != null) throw (Exception) failure.get();
        return tookNs;
    }
}
