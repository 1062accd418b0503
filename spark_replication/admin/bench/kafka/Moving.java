import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Properties;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.TopicPartitionInfo;

/** Moves replicas of Kafka as moving.py does ours: there, and back. Janino compiles it as it starts: see Sending. */
public class Moving {
    static final long POLL_MS = 20;

    public static void main(String[] given) throws Exception {
        String bootstrap = given[0], topic = given[1];

        Properties settings = new Properties();
        settings.put("bootstrap.servers", bootstrap);
        AdminClient admin = AdminClient.create(settings);
        List brokers = new ArrayList();
        for (Iterator each = ((Iterable) admin.describeCluster().nodes().get()).iterator(); each.hasNext();)
            brokers.add(Integer.valueOf(((Node) each.next()).id()));

        // Both from the start: a broker tells of a move a while after it has ended.
        Map targets = targets(admin, topic, brokers, true), others = targets(admin, topic, brokers, false);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        while (input.readLine() != null) {
            long beganNs = System.nanoTime();
            admin.alterPartitionReassignments(targets).all().get();
            while (!((Map) admin.listPartitionReassignments(targets.keySet()).reassignments().get()).isEmpty())
                Thread.sleep(POLL_MS);
            System.out.println("[" + (System.nanoTime() - beganNs) + "]");
            Map next = others;
            others = targets;
            targets = next;
        }
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
}
