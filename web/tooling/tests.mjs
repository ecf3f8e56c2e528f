/** Bundles programs of web/test for Node into a folder: `node tooling/tests.mjs FOLDER`. */

import { readdir, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { bundle, ROOT } from "./bundle.mjs";

const folder = process.argv[2];
if (!folder) throw new Error("usage: node tooling/tests.mjs FOLDER");
for (const name of await readdir(join(ROOT, "test"))) {
  if (!name.endsWith(".ts")) continue;
  const [file] = await bundle(`test/${name}`, { platform: "node", format: "esm", minify: true, target: "node20" });
  await writeFile(join(folder, name.replace(/\.ts$/, ".mjs")), file.contents);
}
