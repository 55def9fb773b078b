// A loop over the Runtime API, in the place of AWS's own, which is compiled at its installation.
import { handler } from "./index.mjs";

const base = `http://${process.env.AWS_LAMBDA_RUNTIME_API}/2018-06-01/runtime/invocation`;
for (;;) {
  const next = await fetch(`${base}/next`);
  const id = next.headers.get("lambda-runtime-aws-request-id");
  try {
    const result = await handler(await next.json());
    await fetch(`${base}/${id}/response`, { method: "POST", body: JSON.stringify(result) });
  } catch (error) {
    const body = JSON.stringify({ errorType: error.name, errorMessage: error.message });
    await fetch(`${base}/${id}/error`, { method: "POST", body });
  }
}
