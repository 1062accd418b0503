import java.io.IOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;

/** Moves replicas of Kafka as moving.py does ours. Janino compiles it as it starts: see Paced. */
public class Moving {
    static final long POLL_MS = 20;

    public static void main(String[] given) throws Exception {
        String bootstrap = given[0], topic = given[1];
        long partitionBytes = Long.parseLong(given[2]);

        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        AdminClient admin = AdminClient.create(settings);
        List brokers = new ArrayList();
        for (Iterator each = ((Iterable) admin.describeCluster().nodes().get()).iterator(); each.hasNext();)
            brokers.add(Integer.valueOf(((Node) each.next()).id()));

        // Both from the start: a broker tells of a move a while after it has ended.
        Map there = targets(admin, topic, brokers, true), back = targets(admin, topic, brokers, false);
        AtomicBoolean ended = null;
        long moved = 0, beganNs = System.nanoTime();
        do {
            Map targets = moved / there.size() % 2 == 0 ? there : back;
            admin.alterPartitionReassignments(targets).all().get();
            if (ended == null) ended = begun();
            while (!((Map) admin.listPartitionReassignments(targets.keySet()).reassignments().get()).isEmpty())
                Thread.sleep(POLL_MS);
            moved += targets.size();
        } while (!ended.get());
        double seconds = (System.nanoTime() - beganNs) / 1e9;
        System.out.println("{\"bytes\": " + moved * partitionBytes + ", \"seconds\": " + seconds + "}");
        admin.close();
    }

    /** The replicas that each partition has; or with `moves` the last of them on a broker that has none. */
    static Map targets(AdminClient admin, String topic, List brokers, boolean moves) throws Exception {
        Map described = (Map) admin.describeTopics(Collections.singletonList(topic)).allTopicNames().get();
        Map targets = new HashMap();
        for (Iterator each = ((TopicDescription) described.get(topic)).partitions().iterator(); each.hasNext();) {
            TopicPartitionInfo partition = (TopicPartitionInfo) each.next();
            List replicas = new ArrayList(), free = new ArrayList(brokers);
            for (Iterator node = partition.replicas().iterator(); node.hasNext();)
                replicas.add(Integer.valueOf(((Node) node.next()).id()));
            free.removeAll(replicas);
            if (moves) replicas.set(replicas.size() - 1, free.get(0));
            targets.put(
                new TopicPartition(topic, partition.partition()), Optional.of(new NewPartitionReassignment(replicas)));
        }
        return targets;
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
