// Sends requests by java.net.http.HttpClient with its defaults (it offers HTTP/2), compares every body with
// the object on disk, and prints the number of requests.
//
//   java Client.java BASE OBJECTS REQUESTS PARALLEL NAME...

import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.CompletableFuture;

public class Client {
    public static void main(String[] args) throws Exception {
        String base = args[0];
        Path objects = Path.of(args[1]);
        int requests = Integer.parseInt(args[2]);
        int parallel = Integer.parseInt(args[3]);
        List<String> names = Arrays.asList(args).subList(4, args.length);
        HttpClient client = HttpClient.newHttpClient();
        for (int round = 0; round < requests; round++) {
            List<String> asked = new ArrayList<>();
            List<CompletableFuture<HttpResponse<byte[]>>> responses = new ArrayList<>();
            for (int number = 0; number < parallel; number++) {
                String name = names.get((round + number) % names.size());
                HttpRequest request = HttpRequest.newBuilder(URI.create(base + "/" + name))
                        .timeout(Duration.ofSeconds(30))
                        .build();
                asked.add(name);
                responses.add(client.sendAsync(request, BodyHandlers.ofByteArray()));
            }
            for (int number = 0; number < parallel; number++) {
                HttpResponse<byte[]> response = responses.get(number).get();
                byte[] expected = Files.readAllBytes(objects.resolve(asked.get(number)));
                if (response.statusCode() != 200 || !Arrays.equals(response.body(), expected)) {
                    System.err.printf("request %d of %d, %s: %d, %d bytes%n", round, number,
                            asked.get(number), response.statusCode(), response.body().length);
                    System.exit(1);
                }
            }
        }
        System.out.printf("requests %d%n", requests * parallel);
    }
}
