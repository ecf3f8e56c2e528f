/** How everything is bundled, for the page and for tests. */

import { build } from "esbuild";
import { fileURLToPath } from "node:url";
import { patchMls } from "./patches.mjs";

export const ROOT = fileURLToPath(new URL("..", import.meta.url));

/** Bundles one entry; returns the files that come out: their names' endings and their bytes. */
export async function bundle(entry, options = {}) {
  const { outputFiles } = await build({
    absWorkingDir: ROOT,
    entryPoints: [entry],
    outdir: "out",
    bundle: true,
    write: false,
    metafile: true,
    minify: true,
    format: "iife",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    logLevel: "warning",
    jsx: "automatic",
    jsxImportSource: "preact",
    plugins: [patchMls],
    ...options,
  });
  return outputFiles;
}
