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
 * Kafka's producer at a fixed rate, as pacing.py is ours: each row is sent when it is due. Prints how many nanoseconds
 * each took from then to its acknowledgement, as JSON. ProducerPerformance counts whole milliseconds.
 *
 * Janino compiles it as it starts, so it has neither lambdas nor type arguments.
 */
public class Paced {
    public static void main(String[] given) throws Exception {
        final String bootstrap = given[0], topic = given[1];
        final int partitions = Integer.parseInt(given[2]), rowBytes = Integer.parseInt(given[3]);
        final int rowsPerSecond = Integer.parseInt(given[4]);
        final int warmUpRows = Integer.parseInt(given[5]), rows = Integer.parseInt(given[6]);

        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("linger.ms", "0");
        byte[] row = new byte[rowBytes];
        new Random().nextBytes(row);
        final long[] tookNs = new long[warmUpRows + rows];
        final AtomicReference failure = new AtomicReference();
        KafkaProducer producer = new KafkaProducer(settings, new ByteArraySerializer(), new ByteArraySerializer());

        long firstNs = System.nanoTime();
        for (int each = 0; each < tookNs.length; each++) {
            final int number = each;
            final long dueNs = firstNs + each * 1000000000L / rowsPerSecond;
            while (System.nanoTime() < dueNs) LockSupport.parkNanos(dueNs - System.nanoTime());
            producer.send(new ProducerRecord(topic, Integer.valueOf(each % partitions), null, row), new Callback() {
                public void onCompletion(RecordMetadata place, Exception error) {
                    tookNs[number] = System.nanoTime() - dueNs;
                    if (error != null) failure.set(error);
                }
            });
        }
        producer.close();
        if (failure.get() != null) throw (Exception) failure.get();
        System.out.println(Arrays.toString(Arrays.copyOfRange(tookNs, warmUpRows, tookNs.length)));
    }
}
