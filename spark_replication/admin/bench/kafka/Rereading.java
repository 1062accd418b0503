import java.io.IOException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/** Kafka's consumer as rereading.py is our reader. Janino compiles it as it starts: see Paced. */
public class Rereading {
    public static void main(String[] given) throws Exception {
        String bootstrap = given[0], topic = given[1];
        int partitions = Integer.parseInt(given[2]), rowBytes = Integer.parseInt(given[3]);
        int mbPerS = Integer.parseInt(given[4]);
        double nsPerRow = mbPerS == 0 ? 0 : rowBytes * 1e3 / mbPerS;

        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        KafkaConsumer consumer =
            new KafkaConsumer(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer());
        List assigned = new ArrayList();
        for (int each = 0; each < partitions; each++) assigned.add(new TopicPartition(topic, each));
        consumer.assign(assigned);
        consumer.seekToBeginning(assigned);
        Map ends = consumer.endOffsets(assigned);

        AtomicBoolean ended = null;
        long rows = 0, beganNs = System.nanoTime();
        while (ended == null || !ended.get()) {
            ConsumerRecords found = consumer.poll(Duration.ofMillis(100));
            if (ended == null && found.count() > 0) ended = begun();
            rows += found.count();
            long earlyMs = (long) (beganNs + rows * nsPerRow - System.nanoTime()) / 1_000_000;
            if (earlyMs > 0) Thread.sleep(earlyMs);
            for (Iterator each = assigned.iterator(); each.hasNext();) {
                TopicPartition partition = (TopicPartition) each.next();
                if (consumer.position(partition) >= ((Long) ends.get(partition)).longValue())
                    consumer.seekToBeginning(Collections.singletonList(partition));
            }
        }
        double seconds = (System.nanoTime() - beganNs) / 1e9;
        System.out.println("{\"bytes\": " + rows * rowBytes + ", \"seconds\": " + seconds + "}");
        consumer.close();
    }

    /** Whether the input has ended, once this program has said that it has begun. */
    static AtomicBoolean begun() {
        final AtomicBoolean ended = new AtomicBoolean();
        System.out.println("ready");
        Thread listener = new Thread() {
            public void run() {
                try {
                    while (System.in.read() >= 0);
                } catch (IOException error) {
                    // Then it has ended, too.
                }
                ended.set(true);
            }
        };
        listener.setDaemon(true);
        listener.start();
        return ended;
    }
}
