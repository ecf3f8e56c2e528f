/** Bundles the page, the Worker and the test programs. */

import { build } from "esbuild";
import { fileURLToPath } from "node:url";
import { patchMls } from "./patches.mjs";

export const ROOT = fileURLToPath(new URL("..", import.meta.url));

/** Bundles one entry point; returns the output files with paths and contents. */
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
