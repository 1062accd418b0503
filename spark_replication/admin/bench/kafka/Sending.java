import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Instant;
import java.util.Arrays;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's producer as sending.py is ours. Its own ProducerPerformance ends after one measurement, before its Java is
 * warm, and counts whole milliseconds. As fast as it goes, the producer chooses the partitions.
 *
 * Janino compiles it as it starts, so it has neither lambdas nor type arguments.
 */
public class Sending {
    static final AtomicReference failure = new AtomicReference();
    static KafkaProducer producer;
    static String topic;
    static byte[] row;

    public static void main(String[] given) throws Exception {
        topic = given[1];
        final int partitions = Integer.parseInt(given[2]), rowsABatch = Integer.parseInt(given[4]);
        row = new byte[Integer.parseInt(given[3])];
        new Random().nextBytes(row);
        Properties settings = new Properties();
        settings.put("bootstrap.servers", given[0]);
        settings.put("acks", "all");
        for (int each = 5; each < given.length; each++) {
            String[] setting = given[each].split("=");
            settings.put(setting[0], setting[1]);
        }
        producer = new KafkaProducer(settings, new ByteArraySerializer(), new ByteArraySerializer());

        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] asked = line.trim().split(" ");
            long first = Long.parseLong(asked[1]);
            long[] tookNs;
            if (asked[0].equals("fast")) tookNs = fast(first * rowsABatch);
            else if (asked[0].equals("paced")) tookNs = paced(first, Integer.parseInt(asked[2]), partitions);
            else tookNs = since(first, asked);
            if (failure.get() != null) throw (Exception) failure.get();
            System.out.println(Arrays.toString(tookNs));
        }
        producer.close();
    }

    static long[] fast(long rows) {
        Callback told = new Callback() {
            public void onCompletion(RecordMetadata place, Exception error) {
                if (error != null) failure.set(error);
            }
        };
        long beganNs = System.nanoTime();
        for (long each = 0; each < rows; each++) producer.send(new ProducerRecord(topic, row), told);
        producer.flush();
        return new long[] {System.nanoTime() - beganNs};
    }

    static long[] paced(long rowsPerSecond, int rows, int partitions) {
        long[] tookNs = new long[rows];
        long firstNs = System.nanoTime();
        for (int each = 0; each < rows; each++) {
            long dueNs = firstNs + each * 1000000000L / rowsPerSecond;
            while (System.nanoTime() < dueNs) LockSupport.parkNanos(dueNs - System.nanoTime());
            send(each % partitions, tookNs, each, dueNs, false);
        }
        producer.flush();
        return tookNs;
    }

    static long[] since(long atNs, String[] asked) {
        long[] tookNs = new long[asked.length - 2];
        for (int each = 0; each < tookNs.length; each++)
            send(Integer.parseInt(asked[each + 2]), tookNs, each, atNs, true);
        producer.flush();
        return tookNs;
    }

    static void send(int partition, final long[] tookNs, final int number, final long sinceNs, final boolean ofDay) {
        producer.send(new ProducerRecord(topic, Integer.valueOf(partition), null, row), new Callback() {
            public void onCompletion(RecordMetadata place, Exception error) {
                tookNs[number] = (ofDay ? timeOfDayNs() : System.nanoTime()) - sinceNs;
                if (error != null) failure.set(error);
            }
        });
    }

    static long timeOfDayNs() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1000000000L + now.getNano();
    }
}
