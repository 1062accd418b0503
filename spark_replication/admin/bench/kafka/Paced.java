import java.io.BufferedReader;
import java.io.InputStreamReader;
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
 * Kafka's producer at a fixed rate, as pacing.py is ours: each line of the input has a rate and a number of rows. Each
 * row is sent when it is due; at a rate of 0, as fast as it goes. Prints how many nanoseconds each took from then to
 * its acknowledgement, as JSON; of those at a rate of 0, how many all took. ProducerPerformance counts whole
 * milliseconds.
 *
 * Janino compiles it as it starts, so it has neither lambdas nor type arguments.
 */
public class Paced {
    public static void main(String[] given) throws Exception {
        final String bootstrap = given[0], topic = given[1];
        final int partitions = Integer.parseInt(given[2]), rowBytes = Integer.parseInt(given[3]);

        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("linger.ms", "0");
        byte[] row = new byte[rowBytes];
        new Random().nextBytes(row);
        KafkaProducer producer = new KafkaProducer(settings, new ByteArraySerializer(), new ByteArraySerializer());

        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] asked = line.trim().split(" ");
            int rowsPerSecond = Integer.parseInt(asked[0]);
            long beganNs = System.nanoTime();
            long[] tookNs = send(producer, topic, partitions, row, rowsPerSecond, Integer.parseInt(asked[1]));
            if (rowsPerSecond == 0) tookNs = new long[] {System.nanoTime() - beganNs};
            System.out.println(Arrays.toString(tookNs));
        }
        producer.close();
    }

    static long[] send(KafkaProducer producer, String topic, int partitions, byte[] row, int rowsPerSecond, int rows)
            throws Exception {
        final long[] tookNs = new long[rows];
        final AtomicReference failure = new AtomicReference();
        long firstNs = System.nanoTime();
        for (int each = 0; each < rows; each++) {
            final int number = each;
            final long dueNs = rowsPerSecond == 0 ? firstNs : firstNs + each * 1000000000L / rowsPerSecond;
            while (System.nanoTime() < dueNs) LockSupport.parkNanos(dueNs - System.nanoTime());
            producer.send(new ProducerRecord(topic, Integer.valueOf(each % partitions), null, row), new Callback() {
                public void onCompletion(RecordMetadata place, Exception error) {
                    tookNs[number] = System.nanoTime() - dueNs;
                    if (error != null) failure.set(error);
                }
            });
        }
        producer.flush();
        if (failure.get() != null) throw (Exception) failure.get();
        return tookNs;
    }
}
