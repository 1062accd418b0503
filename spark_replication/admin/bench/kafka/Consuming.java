import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Kafka's consumer as consuming.py is our reader. The settings are those of its own ConsumerPerformance, which ends
 * after one measurement, before its Java is warm. Janino compiles it as it starts: see Sending.
 */
public class Consuming {
    public static void main(String[] given) throws Exception {
        String bootstrap = given[0], topic = given[1];
        int partitions = Integer.parseInt(given[2]), rowBytes = Integer.parseInt(given[3]);
        long rows = Long.parseLong(given[4]);

        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("receive.buffer.bytes", String.valueOf(2 << 20));
        settings.put("max.partition.fetch.bytes", String.valueOf(1 << 20));
        settings.put("check.crcs", "false");
        KafkaConsumer consumer =
            new KafkaConsumer(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List assigned = new ArrayList();
        for (int each = 0; each < partitions; each++) assigned.add(new TopicPartition(topic, each));
        consumer.assign(assigned);

        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            int mbPerS = Integer.parseInt(line.trim());
            double nsPerRow = mbPerS == 0 ? 0 : rowBytes * 1e3 / mbPerS;
            long beganNs = System.nanoTime();
            consumer.seekToBeginning(assigned);
            for (long read = 0; read < rows;) {
                read += consumer.poll(Duration.ofMillis(100)).count();
                long earlyMs = (long) (beganNs + read * nsPerRow - System.nanoTime()) / 1_000_000;
                if (earlyMs > 0) Thread.sleep(earlyMs);
            }
            System.out.println("[" + (System.nanoTime() - beganNs) + "]");
        }
        consumer.close();
    }
}
