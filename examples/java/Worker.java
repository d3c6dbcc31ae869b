import com.rabbitmq.client.Channel;
import com.rabbitmq.client.Connection;
import com.rabbitmq.client.ConnectionFactory;
import com.rabbitmq.client.Delivery;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicReference;

/**
 * A worker that knows nothing of retries: it acknowledges what it handled and
 * rejects what failed. What waits, for how long and how often is the router's
 * business. The property "type" of a message says what happens to it here, so
 * that every kind of failure can be seen.
 */
public class Worker {
    static final String QUEUE = System.getenv().getOrDefault("QUEUE", "orders");

    static class NotNow extends Exception {
        final boolean explain;

        NotNow(boolean explain) {
            super("the warehouse does not answer");
            this.explain = explain;
        }
    }

    static class NoSuchCustomer extends Exception {
        NoSuchCustomer(String name) {
            super("no such customer: " + name);
        }
    }

    static class Busy extends Exception {
        final long afterMs;

        Busy(long afterMs) {
            super("try again in " + afterMs + " ms");
            this.afterMs = afterMs;
        }
    }

    // docs/rich-failures.md shows this method, and a test compares the two.

    // channel.confirmSelect() has been called, and once:
    //   channel.addReturnListener(r -> returned.set(r.getReplyText()));
    static final AtomicReference<String> returned = new AtomicReference<>();

    static void fail(Channel channel, String queue, Delivery d, Throwable error, String verdict, Long afterMs)
            throws IOException, InterruptedException, TimeoutException {
        Map<String, Object> headers = new HashMap<>();
        if (d.getProperties().getHeaders() != null) headers.putAll(d.getProperties().getHeaders());
        headers.remove("x-death");
        Object owner = headers.get("x-retry-queue");
        if (owner != null && !owner.toString().equals(queue)) headers.keySet().removeIf(k -> k.startsWith("x-retry-"));
        if (!headers.containsKey("x-retry-queue")) {
            headers.put("x-retry-queue", queue);
            headers.put("x-retry-exchange", d.getEnvelope().getExchange());
            headers.put("x-retry-routing-key", d.getEnvelope().getRoutingKey());
        }
        headers.put("x-retry-error", String.valueOf(error.getMessage()));
        headers.put("x-retry-error-type", error.getClass().getSimpleName());
        if (verdict != null) headers.put("x-retry-verdict", verdict);
        if (afterMs != null) headers.put("x-retry-after", afterMs);
        returned.set(null);
        channel.basicPublish("hop.failed", d.getEnvelope().getRoutingKey(), true,
            d.getProperties().builder().headers(headers).userId(null).build(), d.getBody());
        // An exception leaves the message unacknowledged: close the connection, and the broker delivers it again.
        if (!channel.waitForConfirms(20_000) || returned.get() != null) throw new IOException("not taken: " + returned.get());
        channel.basicAck(d.getEnvelope().getDeliveryTag(), false);
    }

    /** 1 for a message that never failed in this queue. */
    static int attemptOf(Delivery d) {
        Map<String, Object> h = d.getProperties().getHeaders();
        if (h == null || !String.valueOf(h.getOrDefault("x-retry-queue", QUEUE)).equals(QUEUE)) return 1;
        return Integer.parseInt(String.valueOf(h.getOrDefault("x-retry-count", 0))) + 1;
    }

    /** Where your work would be. */
    static void handle(Delivery d, int attempt) throws NotNow, NoSuchCustomer, Busy {
        String[] type = (String.valueOf(d.getProperties().getType()) + " 1").split(" ");
        int n = Integer.parseInt(type[1]);
        switch (type[0]) {
            case "transient": // fails n times
                if (attempt <= n) throw new NotNow(false);
                break;
            case "explained": // the same, and the router is told why
                if (attempt <= n) throw new NotNow(true);
                break;
            case "permanent": // no retry can help
                throw new NoSuchCustomer("Zoë");
            case "later": // asks for n ms
                if (attempt == 1) throw new Busy(n);
                break;
            case "crash": // takes the process with it, the first time
                if (!d.getEnvelope().isRedeliver()) Runtime.getRuntime().halt(3);
                break;
            default:
        }
    }

    static void settle(Channel channel, Delivery d) throws Exception {
        int attempt = attemptOf(d);
        String who = d.getProperties().getMessageId() + " attempt " + attempt;
        try {
            handle(d, attempt);
            channel.basicAck(d.getEnvelope().getDeliveryTag(), false);
            System.out.println("handled " + who);
        } catch (NoSuchCustomer e) {
            System.out.println("failed " + who);
            fail(channel, QUEUE, d, e, "permanent", null);
        } catch (Busy e) {
            System.out.println("failed " + who);
            fail(channel, QUEUE, d, e, null, e.afterMs);
        } catch (NotNow e) {
            System.out.println("failed " + who);
            if (e.explain) fail(channel, QUEUE, d, e, null, null);
            else channel.basicReject(d.getEnvelope().getDeliveryTag(), false);
        }
    }

    public static void main(String[] args) throws Exception {
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(System.getenv().getOrDefault("HOPBACK_BROKER_URL", "amqp://guest:guest@127.0.0.1:5672/"));
        factory.setAutomaticRecoveryEnabled(false); // the process ends with what is lost; nothing is settled behind its back
        Connection connection = factory.newConnection();
        Channel channel = connection.createChannel();
        channel.confirmSelect();
        channel.addReturnListener(r -> returned.set(r.getReplyText()));
        channel.basicQos(10);
        channel.queueDeclare(QUEUE, true, false, false, Map.of(
            "x-queue-type", "quorum", "x-dead-letter-exchange", "hop.failed",
            "x-dead-letter-strategy", "at-least-once", "x-overflow", "reject-publish"));
        connection.addShutdownListener(cause -> stop(cause));
        channel.basicConsume(QUEUE, false, (tag, d) -> {
            try {
                settle(channel, d);
            } catch (Exception e) {
                stop(e);
            }
        }, tag -> stop(new IOException("the queue was deleted")));
        System.out.println("waiting for messages in " + QUEUE);
    }

    /** Ends the process without settling what is open: the broker delivers it again. */
    static void stop(Exception e) {
        e.printStackTrace();
        Runtime.getRuntime().halt(1);
    }
}
