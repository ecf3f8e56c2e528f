/**
 * Fixes bugs of ts-mls 1.6.4: an esbuild plugin that replaces text, and fails unless each text occurs exactly once.
 * Review each patch when ts-mls is updated.
 */

import { readFile } from "node:fs/promises";

const PATCHES = {
  // An unmerged leaf must be below the node, and the nodes between them must list it too (RFC 9420, 12.4.3.1).
  "clientState.js": [
    [
      'if (tree[nodeIndex]?.nodeType !== "leaf" && !dp.includes(toNodeIndex(i)))',
      'if (tree[nodeIndex]?.nodeType !== "leaf" || !dp.includes(toNodeIndex(i)))',
    ],
    ["for (const parentIdx of dp) {", "for (const parentIdx of dp.slice(0, dp.indexOf(toNodeIndex(i)))) {"],
    [
      "if (!arraysEqual(dpNode.parent.unmergedLeaves, n.parent.unmergedLeaves))",
      "if (!dpNode.parent.unmergedLeaves.includes(unmergedLeaf))",
    ],
    // Default types are not listed in capabilities (11.1).
    ["caps.extensionTypes.every((e) => cs.extensions.includes(e))", "caps.extensionTypes.every((e) => e <= 5 || cs.extensions.includes(e))"],
    ["caps.proposalTypes.every((p) => cs.proposals.includes(p))", "caps.proposalTypes.every((p) => p <= 7 || cs.proposals.includes(p))"],
    // ts-mls reads the list of external senders as a single sender; `checks.ts` reads it.
    ['const externalSenders = extensions.filter((e) => e.extensionType === "external_senders");', "const externalSenders = [];"],
    // A commit may remove all extensions of the group.
    ["extensions: newExtensions,", "extensions: grouped.group_context_extensions.length > 0 ? newExtensions : state.groupContext.extensions,"],
  ],
  "publicMessage.js": [
    ["import { decodeVarLenData, varLenDataEncoder }", "import { decodeVarLenData, decodeVarLenType, varLenDataEncoder }"],
    ["externalSenderExtensions[senderIndex];", "externalSenderExtensions[0];"],
    ["const externalSender = decodeExternalSender(", "const externalSender = decodeVarLenType(decodeExternalSender)("],
    ["return externalSender[0];", "return externalSender[0][senderIndex];"],
  ],
  // The value 0 is present: it is the first leaf.
  "codec/optional.js": [["if (t) {", "if (t !== undefined) {"]],
  "processMessages.js": [
    [
      'result.additionalResult.kind === "memberCommit" && result.additionalResult.extensions.length > 0',
      'result.additionalResult.kind === "memberCommit"',
    ],
  ],
  // The decrypted content must be canonical, since other clients reject it otherwise.
  "messageProtection.js": [
    [
      "    const content = toAuthenticatedContent(pmc, msg, senderData.leafIndex);",
      '    const written = encodePrivateMessageContent({ kind: "alwaysPad", paddingLength: 0 })(pmc);\n' +
        '    if (written.some((each, at) => each !== decrypted[at])) throw new CodecError("the content is not canonical");\n' +
        "    const content = toAuthenticatedContent(pmc, msg, senderData.leafIndex);",
    ],
  ],
  // A leaf may list unknown versions (13.5).
  "capabilities.js": [
    [
      'import { decodeProtocolVersion, protocolVersionEncoder } from "./protocolVersion.js";',
      'import { protocolVersions } from "./protocolVersion.js";\n' +
        'import { mapDecoderOption } from "./codec/tlsDecoder.js";\n' +
        'import { contramapBufferEncoder } from "./codec/tlsEncoder.js";\n' +
        'import { openEnumNumberEncoder, openEnumNumberToKey } from "./util/enumHelpers.js";',
    ],
    ["varLenTypeEncoder(protocolVersionEncoder),", "varLenTypeEncoder(contramapBufferEncoder(uint16Encoder, openEnumNumberEncoder(protocolVersions))),"],
    ["decodeVarLenType(decodeProtocolVersion),", "decodeVarLenType(mapDecoderOption(decodeUint16, openEnumNumberToKey(protocolVersions))),"],
  ],
  // For a skipped generation only key and nonce are kept, not the secret, which yields all later keys (9.2).
  "secretTree.js": [
    [
      'return await deriveTreeSecret(secret, "nonce",',
      "if (secret.length === cs.hpke.keyLength + cs.hpke.nonceLength) return secret.slice(cs.hpke.keyLength);\n" +
        '    return await deriveTreeSecret(secret, "nonce",',
    ],
    [
      'return await deriveTreeSecret(secret, "key",',
      "if (secret.length === cs.hpke.keyLength + cs.hpke.nonceLength) return secret.slice(0, cs.hpke.keyLength);\n" +
        '    return await deriveTreeSecret(secret, "key",',
    ],
    [
      "export async function ratchetUntil(current, desiredGen, config, kdf) {",
      "export async function ratchetUntil(current, desiredGen, config, cs) {\n    const { kdf } = cs;",
    ],
    ["senderData.generation, config, cs.kdf);", "senderData.generation, config, cs);"],
    [
      "const [updated, old] = updateUnusedGenerations(result, config.retainKeysForGenerations);",
      "const parts = [await deriveKey(result.secret, result.generation, cs), await deriveNonce(result.secret, result.generation, cs)];\n" +
        "        const kept = new Uint8Array(parts.flatMap((each) => [...each]));\n" +
        "        const [updated, old] = updateUnusedGenerations({ ...result, secret: kept }, config.retainKeysForGenerations);",
    ],
  ],
  // A blank root is not on the filtered path: it passes on the secret of the node before.
  "pathSecrets.js": [
    [
      'const nextSecret = await deriveSecret(pathSecrets[currentIndex], "path", kdf);',
      "const nextSecret = tree[nextIndex] === undefined\n" +
        "            ? pathSecrets[currentIndex]\n" +
        '            : await deriveSecret(pathSecrets[currentIndex], "path", kdf);',
    ],
  ],
};

/** Returns the patched text of a file of ts-mls. Throws if a patch does not match exactly once. */
export function patched(name, text) {
  for (const [from, to] of PATCHES[name]) {
    if (text.split(from).length !== 2) throw new Error(`ts-mls: not exactly once in ${name}: ${from}`);
    text = text.replace(from, () => to);
  }
  return text;
}

const SOURCES = new URL("../node_modules/ts-mls/dist/src/", import.meta.url);

export const patchMls = {
  name: "patch-ts-mls",
  setup(build) {
    // Checks all patches, including those that a bundle does not need.
    build.onStart(async () => {
      for (const name of Object.keys(PATCHES)) patched(name, await readFile(new URL(name, SOURCES), "utf8"));
    });
    build.onLoad({ filter: /ts-mls\/dist\/src\/.*\.js$/ }, async ({ path }) => {
      const name = path.slice(path.indexOf("dist/src/") + "dist/src/".length);
      if (!(name in PATCHES)) return undefined;
      return { contents: patched(name, await readFile(path, "utf8")), loader: "js" };
    });
  },
};
