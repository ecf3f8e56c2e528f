/**
 * Clients of the browser's MLS layer, driven by lines of JSON like tests/interop_peer. The state of a group is stored and
 * loaded after each step.
 */

import { createInterface } from "node:readline";
import { createProposal } from "ts-mls/createMessage.js";
import { leavesOf } from "../src/engine/mls/checks";
import { commit } from "../src/engine/mls/committing";
import { MlsGroup } from "../src/engine/mls/group";
import { joinByWelcome, joinExternal } from "../src/engine/mls/joining";
import { makeKeyPackage, published, type OwnKeyPackage } from "../src/engine/mls/keys";
import { receive } from "../src/engine/mls/receiving";
import { newSignatureKey, suite } from "../src/engine/mls/suite";
import { decode, encode } from "../src/engine/mls/wire";
import { fromHex, hex } from "../src/engine/bytes";
import type { KeyPackage } from "ts-mls/keyPackage.js";

interface Client {
  userId: string;
  signKey: Uint8Array;
  packages: OwnKeyPackage[];
  group: MlsGroup | null;
}

const clients = new Map<string, Client>();
const now = Math.floor(Date.now() / 1000);
const own = (client: Client): Promise<OwnKeyPackage> => makeKeyPackage(client.userId, client.signKey, now);

function keyPackageOf(text: string): KeyPackage {
  const message = decode(fromHex(text));
  if (message.wireformat !== "mls_key_package") throw new Error("not a key package");
  return message.keyPackage;
}

type Fields = Record<string, any>;

const groupOperations: Record<string, (client: Client, group: MlsGroup, fields: Fields) => Promise<Fields>> = {
  async commit(client, group, { add, remove }) {
    const made = await commit(group, { add: add.map(keyPackageOf), remove, now });
    client.group = made.group;
    return { commit: hex(made.message), welcome: made.welcome && hex(made.welcome) };
  },
  async propose(client, group, { kind, key_package, index }) {
    const proposal =
      kind === "add"
        ? { proposalType: "add" as const, add: { keyPackage: keyPackageOf(key_package) } }
        : { proposalType: "remove" as const, remove: { removed: index } };
    const { message, newState } = await createProposal(group.state, true, proposal, await suite());
    client.group = group.with({ state: newState, sound: new Set(Object.keys(newState.unappliedProposals)) });
    return { proposal: hex(encode(message)) };
  },
  async process(client, group, { message }) {
    const processed = await receive(group, fromHex(message));
    client.group = processed.group;
    const { received } = processed;
    return received.kind === "text" ? { plaintext: hex(received.data), sender: received.sender.index } : {};
  },
  async encrypt(client, group, { plaintext }) {
    const { group: next, message } = await group.encrypt(fromHex(plaintext));
    client.group = next;
    return { message: hex(message) };
  },
  group_info: async (_, group) => ({ group_info: hex(await group.groupInfo()) }),
  info: async (_, group) => ({
    own_index: group.ownIndex,
    epoch: group.epoch,
    epoch_authenticator: hex(group.state.keySchedule.epochAuthenticator),
    tree_hash: hex(group.state.groupContext.treeHash),
    members: leavesOf(group.state.ratchetTree).map(([index]) => ({ index })),
  }),
};

const clientOperations: Record<string, (client: Client, fields: Fields) => Promise<Fields>> = {
  async key_package(client) {
    const made = await own(client);
    client.packages.push(made);
    return { key_package: hex(published(made)) };
  },
  async create_group(client) {
    client.group = await MlsGroup.create(await own(client));
    return {};
  },
  async join(client, { welcome }) {
    const { group, used } = await joinByWelcome(fromHex(welcome), client.packages);
    client.packages = client.packages.filter((each) => each !== used);
    client.group = group;
    return {};
  },
  async external_commit(client, { group_info }) {
    const { group, message } = await joinExternal(fromHex(group_info), await own(client));
    client.group = group;
    return { commit: hex(message) };
  },
  async leave(client) {
    if (client.group) throw new Error("the client is still in the group");
    return {};
  },
};

async function answer({ op, client: name, ...fields }: Fields): Promise<Fields> {
  if (op === "new_client") {
    const { uuid } = fields as { uuid: string };
    clients.set(`peer-${uuid.slice(0, 8)}`, { userId: uuid, signKey: newSignatureKey(), packages: [], group: null });
    return {};
  }
  const client = clients.get(name);
  if (!client) throw new Error("no such client");
  const result = clientOperations[op] ? await clientOperations[op](client, fields) : await groupOperations[op]!(client, client.group!, fields);
  if (client.group) client.group = MlsGroup.load(client.group.store());
  return result;
}

for await (const line of createInterface({ input: process.stdin })) {
  let result: Fields;
  try {
    result = { ok: true, ...(await answer(JSON.parse(line))) };
  } catch (error) {
    result = { ok: false, error: error instanceof Error ? `${error.message} ${error.stack}` : String(error) };
  }
  process.stdout.write(`${JSON.stringify(result)}\n`);
}
