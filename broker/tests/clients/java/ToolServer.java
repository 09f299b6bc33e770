import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs Kafka's own command line tools, one after the other, in one JVM: a test that calls twenty of them pays for one start.
 *
 * Standard input: one JSON object a line, {"tool": "kafka-topics", "args": [...], "stdin": "...", "timeout_s": 30}.
 * Standard output: one JSON object a line, {"exit": 0, "out": "...", "err": "..."}.
 *
 * The tool's main method runs as it is. What belongs to the process is replaced for the call: standard streams, the exit
 * procedure (it ends the call), the shutdown hooks (run after the tool, as at a normal exit).
 * A tool that outlives its timeout ends the JVM: its threads can't be taken back.
 */
public final class ToolServer {
    /** Where each tool's main class is: the first that exists, since Kafka 3 and 4 keep them in different packages. */
    private static final Map<String, List<String>> TOOLS = Map.ofEntries(
        Map.entry("kafka-topics", List.of("org.apache.kafka.tools.TopicCommand")),
        Map.entry("kafka-configs", List.of("org.apache.kafka.tools.ConfigCommand", "kafka.admin.ConfigCommand")),
        Map.entry("kafka-console-producer", List.of("org.apache.kafka.tools.ConsoleProducer", "kafka.tools.ConsoleProducer")),
        Map.entry("kafka-consumer-groups",
            List.of("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", "kafka.admin.ConsumerGroupCommand")),
        Map.entry("kafka-get-offsets", List.of("org.apache.kafka.tools.GetOffsetShell")),
        Map.entry("kafka-delete-records", List.of("org.apache.kafka.tools.DeleteRecordsCommand")),
        Map.entry("kafka-log-dirs", List.of("org.apache.kafka.tools.LogDirsCommand")),
        Map.entry("kafka-broker-api-versions",
            List.of("org.apache.kafka.tools.BrokerApiVersionsCommand", "kafka.admin.BrokerApiVersionsCommand")),
        Map.entry("kafka-cluster", List.of("org.apache.kafka.tools.ClusterTool")),
        Map.entry("kafka-groups", List.of("org.apache.kafka.tools.GroupsCommand")),
        Map.entry("kafka-producer-perf-test", List.of("org.apache.kafka.tools.ProducerPerformance")),
        Map.entry("kafka-consumer-perf-test", List.of("org.apache.kafka.tools.ConsumerPerformance")),
        Map.entry("kafka-dump-log", List.of("org.apache.kafka.tools.DumpLogSegments", "kafka.tools.DumpLogSegments")),
        Map.entry("java-client", List.of("JavaClient")));

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final Redirect OUT = new Redirect(System.out);
    private static final Redirect ERR = new Redirect(System.err);

    /** Tools (Scala's Console above all) keep the stream they saw first, so the stream stays and its target changes. */
    private static final class Redirect extends OutputStream {
        private volatile OutputStream target;

        Redirect(OutputStream target) {
            this.target = target;
        }

        @Override
        public synchronized void write(int b) throws java.io.IOException {
            target.write(b);
        }

        @Override
        public synchronized void write(byte[] bytes, int offset, int length) throws java.io.IOException {
            target.write(bytes, offset, length);
        }

        @Override
        public void flush() throws java.io.IOException {
            target.flush();
        }
    }

    public static void main(String[] args) throws Exception {
        PrintStream answers = System.out;
        System.setOut(new PrintStream(OUT, true, StandardCharsets.UTF_8));
        System.setErr(new PrintStream(ERR, true, StandardCharsets.UTF_8));
        BufferedReader requests = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = requests.readLine()) != null; ) {
            ObjectNode answer = run(JSON.readTree(line));
            answers.println(JSON.writeValueAsString(answer));
            answers.flush();
            if (answer.path("timeout").asBoolean()) {
                Runtime.getRuntime().halt(124);
            }
        }
        Runtime.getRuntime().halt(0);
    }

    private static Method find(String tool) throws Exception {
        for (String name : TOOLS.getOrDefault(tool, List.of())) {
            try {
                return Class.forName(name).getMethod("main", String[].class);
            } catch (ClassNotFoundException e) {
                continue;
            }
        }
        throw new IllegalArgumentException("no such tool in this Kafka: " + tool);
    }

    private static ObjectNode run(JsonNode request) throws Exception {
        Method main = find(request.path("tool").asText());
        List<String> arguments = new ArrayList<>();
        request.path("args").forEach(a -> arguments.add(a.asText()));
        ByteArrayOutputStream out = new ByteArrayOutputStream();
        ByteArrayOutputStream err = new ByteArrayOutputStream();
        OUT.target = out;
        ERR.target = err;
        System.setIn(new ByteArrayInputStream(request.path("stdin").asText().getBytes(StandardCharsets.UTF_8)));
        AtomicReference<Integer> code = new AtomicReference<>();
        CountDownLatch ended = new CountDownLatch(1);
        List<Runnable> hooks = new ArrayList<>();
        Exit.Procedure exit = (status, message) -> {
            if (message != null) {
                System.err.println(message);
            }
            code.compareAndSet(null, status);
            ended.countDown();
            // An exit does not return, and an exception would be caught by tools that catch everything.
            while (true) {
                LockSupport.park();
            }
        };
        Exit.setExitProcedure(exit);
        Exit.setHaltProcedure(exit);
        Exit.setShutdownHookAdder((name, hook) -> hooks.add(hook));
        Thread thread = new Thread(() -> {
            try {
                main.invoke(null, (Object) arguments.toArray(new String[0]));
                code.compareAndSet(null, 0);
            } catch (Throwable e) {
                (e instanceof InvocationTargetException ? e.getCause() : e).printStackTrace();
                code.compareAndSet(null, 1);
            }
            ended.countDown();
        }, "tool");
        thread.setDaemon(true);
        thread.start();
        ObjectNode answer = JSON.createObjectNode();
        if (ended.await(request.path("timeout_s").asLong(30), TimeUnit.SECONDS)) {
            for (Runnable hook : hooks) {
                Thread at = new Thread(hook, "shutdown hook");
                at.setDaemon(true);
                at.start();
                at.join(10_000);
            }
        } else {
            answer.put("timeout", true);
            StringBuilder stack = new StringBuilder("still running at its timeout:\n");
            for (StackTraceElement frame : thread.getStackTrace()) {
                stack.append("    ").append(frame).append('\n');
            }
            err.write(stack.toString().getBytes(StandardCharsets.UTF_8));
            code.set(124);
        }
        System.out.flush();
        System.err.flush();
        answer.put("exit", code.get());
        answer.put("out", out.toString(StandardCharsets.UTF_8));
        answer.put("err", err.toString(StandardCharsets.UTF_8));
        return answer;
    }
}
