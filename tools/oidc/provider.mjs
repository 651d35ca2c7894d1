// A real OpenID Connect provider for the tests of the operator API; see tests/oidc.py.
//
//   node tools/oidc/provider.mjs FOLDER     FOLDER holds node_modules; the plan comes on stdin:
//   {"port", "jwks", "clients": {ID: {"secret", "roles", "life"?, "claims"?}}}
//
// Prints "ready PORT" when it listens, and ends when stdin does: it never outlives the test.
// Tokens are JWTs (RFC 9068) for the audience that the request names as its `resource`.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const installed = createRequire(join(resolve(process.argv[2]), "here.js"));
const { default: Provider } = await import(
  pathToFileURL(installed.resolve("oidc-provider")).href
);

const lines = createInterface({ input: process.stdin });
const plan = JSON.parse((await lines[Symbol.asyncIterator]().next()).value);
process.stdin.on("end", () => process.exit(0));
process.stdin.on("close", () => process.exit(0));

const clients = Object.entries(plan.clients).map(([id, client]) => ({
  client_id: id,
  client_secret: client.secret,
  grant_types: ["client_credentials"],
  redirect_uris: [],
  response_types: [],
  token_endpoint_auth_method: "client_secret_post",
  id_token_signed_response_alg: plan.jwks.keys[0].alg,
}));

const provider = new Provider(`http://127.0.0.1:${plan.port}`, {
  clients,
  jwks: plan.jwks,
  features: {
    devInteractions: { enabled: false },
    clientCredentials: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (_ctx, resource) => ({
        scope: "fleet",
        audience: resource,
        accessTokenFormat: "jwt",
        jwt: { sign: { alg: plan.jwks.keys[0].alg } },
      }),
    },
  },
  extraTokenClaims: (_ctx, token) => {
    const client = plan.clients[token.clientId];
    return { roles: client.roles, ...client.claims };
  },
  ttl: {
    ClientCredentials: (_ctx, _token, client) => plan.clients[client.clientId].life ?? 600,
  },
});

const server = provider.listen(plan.port, "127.0.0.1", () => {
  console.log(`ready ${server.address().port}`);
});
