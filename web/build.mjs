/**
 * Builds conclave/web/static: the page, its styles and the Worker with hashes in their names, and the files with fixed
 * names: index.html, the service worker, and the files of public/. The build is reproducible.
 */

import { createHash } from "node:crypto";
import { cp, mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { join, resolve } from "node:path";
import { bundle, ROOT } from "./tooling/bundle.mjs";

const out = resolve(process.argv[2] ?? join(ROOT, "../conclave/web/static"));

async function store(name, contents) {
  await writeFile(join(out, name), contents);
  return name;
}

/** Writes a file with a hash of its contents in its name; returns the name. */
function storeHashed(name, ending, contents) {
  const hash = createHash("sha256").update(contents).digest("hex").slice(0, 16);
  return store(`${name}-${hash}${ending}`, contents);
}

/** Returns the licences of the bundled packages, which have to be distributed with them. */
async function licences() {
  const { dependencies } = JSON.parse(await readFile(join(ROOT, "package.json"), "utf8"));
  const texts = Object.keys(dependencies).map(async (name) => {
    const folder = join(ROOT, "node_modules", name);
    const file = (await readdir(folder)).find((each) => /^licen[cs]e/i.test(each));
    return `${name} ${dependencies[name]}\n\n${(await readFile(join(folder, file), "utf8")).trim()}\n`;
  });
  return (await Promise.all(texts)).join(`\n${"-".repeat(80)}\n\n`);
}

await rm(out, { recursive: true, force: true });
await mkdir(out, { recursive: true });
await cp(join(ROOT, "public"), out, { recursive: true });

const [worker] = await bundle("src/engine/worker.ts");
const workerName = await storeHashed("worker", ".js", worker.contents);
const files = await bundle("src/page/main.tsx", { define: { WORKER_URL: JSON.stringify(`/${workerName}`) } });
const names = { worker: workerName };
for (const { path, contents } of files) {
  const ending = path.slice(path.lastIndexOf("."));
  names[ending.slice(1)] = await storeHashed("page", ending, contents);
}
const html = await readFile(join(ROOT, "src/page/index.html"), "utf8");
await store("index.html", html.replace(/{{(\w+)}}/g, (_, key) => `/${names[key]}`));
const shell = JSON.stringify(["/", ...Object.values(names).map((each) => `/${each}`)]);
const [serviceWorker] = await bundle("src/page/service-worker.ts", { define: { SHELL: shell } });
await store("service-worker.js", serviceWorker.contents);
await store("licences.txt", await licences());
