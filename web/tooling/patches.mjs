/**
 * Faults of ts-mls 1.6.4 that have to be mended inside of it: an esbuild plugin that replaces text, and fails unless
 * each place is there exactly once. With another version of ts-mls look at each anew.
 */

import { readFile } from "node:fs/promises";

const PATCHES = {
  // Of an unmerged leaf: it is a leaf below the node, and the nodes between the two list it too (RFC 9420, 12.4.3.1).
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
    // What every client knows is in no list of capabilities (11.1).
    ["caps.extensionTypes.every((e) => cs.extensions.includes(e))", "caps.extensionTypes.every((e) => e <= 5 || cs.extensions.includes(e))"],
    ["caps.proposalTypes.every((p) => cs.proposals.includes(p))", "caps.proposalTypes.every((p) => p <= 7 || cs.proposals.includes(p))"],
    // The list of external senders is read as if it were one; `checks.ts` reads it.
    ['const externalSenders = extensions.filter((e) => e.extensionType === "external_senders");', "const externalSenders = [];"],
    // A commit can take all extensions of the group away.
    ["extensions: newExtensions,", "extensions: grouped.group_context_extensions.length > 0 ? newExtensions : state.groupContext.extensions,"],
  ],
  "publicMessage.js": [
    ["import { decodeVarLenData, varLenDataEncoder }", "import { decodeVarLenData, decodeVarLenType, varLenDataEncoder }"],
    ["externalSenderExtensions[senderIndex];", "externalSenderExtensions[0];"],
    ["const externalSender = decodeExternalSender(", "const externalSender = decodeVarLenType(decodeExternalSender)("],
    ["return externalSender[0];", "return externalSender[0][senderIndex];"],
  ],
  // The number 0 is not absent: it is the first leaf.
  "codec/optional.js": [["if (t) {", "if (t !== undefined) {"]],
  "processMessages.js": [
    [
      'result.additionalResult.kind === "memberCommit" && result.additionalResult.extensions.length > 0',
      'result.additionalResult.kind === "memberCommit"',
    ],
  ],
  // What is inside is written as it would be written here: others refuse what is not.
  "messageProtection.js": [
    [
      "    const content = toAuthenticatedContent(pmc, msg, senderData.leafIndex);",
      '    const written = encodePrivateMessageContent({ kind: "alwaysPad", paddingLength: 0 })(pmc);\n' +
        '    if (written.some((each, at) => each !== decrypted[at])) throw new CodecError("It is written in another way than it has to be");\n' +
        "    const content = toAuthenticatedContent(pmc, msg, senderData.leafIndex);",
    ],
  ],
  // A leaf may tell of versions that are not known here (13.5).
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
  // Of a skipped generation its key and nonce are kept, not the secret, from which all later keys follow (9.2).
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
  // A blank root is not on the filtered path: it hands the secret of the node before on.
  "pathSecrets.js": [
    [
      'const nextSecret = await deriveSecret(pathSecrets[currentIndex], "path", kdf);',
      "const nextSecret = tree[nextIndex] === undefined\n" +
        "            ? pathSecrets[currentIndex]\n" +
        '            : await deriveSecret(pathSecrets[currentIndex], "path", kdf);',
    ],
  ],
};

/** The text of a file of ts-mls with its patches. Throws if one of their places is not there exactly once. */
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
    // All are looked at, also those that a bundle does not need.
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
