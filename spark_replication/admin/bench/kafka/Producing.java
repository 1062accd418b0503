import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Properties;
import java.util.Random;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.Callback;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * Kafka's producer as producing.py is ours: for each line of the input, so many batches of the same row. Its own
 * ProducerPerformance ends after one measurement, before its Java is warm. The producer chooses the partitions.
 *
 * Janino compiles it as it starts: see Paced.
 */
public class Producing {
    static final int BUFFER_BYTES = 64 << 20; // as much as our producer may have unanswered; its default is half of it

    public static void main(String[] given) throws Exception {
        final String bootstrap = given[0], topic = given[1];
        final int rowBytes = Integer.parseInt(given[2]), rowsABatch = Integer.parseInt(given[3]);

        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        settings.put("acks", "all");
        settings.put("batch.size", given[4]);
        settings.put("buffer.memory", String.valueOf(BUFFER_BYTES));
        settings.put("max.request.size", given[5]);
        byte[] row = new byte[rowBytes];
        new Random().nextBytes(row);
        final AtomicReference failure = new AtomicReference();
        Callback told = new Callback() {
            public void onCompletion(RecordMetadata place, Exception error) {
                if (error != null) failure.set(error);
            }
        };
        KafkaProducer producer = new KafkaProducer(settings, new ByteArraySerializer(), new ByteArraySerializer());

        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            long rows = Long.parseLong(line.trim()) * rowsABatch;
            long beganNs = System.nanoTime();
            for (long each = 0; each < rows; each++) producer.send(new ProducerRecord(topic, row), told);
            producer.flush();
            if (failure.get() != null) throw (Exception) failure.get();
            System.out.println(System.nanoTime() - beganNs);
        }
        producer.close();
    }
}
