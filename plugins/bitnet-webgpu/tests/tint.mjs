// Compiles every .wgsl of a folder with Tint (npm `webgpu`, Dawn in Node) on Dawn's null backend, pipelines included, and
// prints {file: [errors]}. usage: node tint.mjs FOLDER
import { readFileSync, readdirSync } from 'node:fs';
import { create, globals } from 'webgpu';

Object.assign(globalThis, globals);
const gpu = create(['backend=null']); // kept: adapters do not keep it alive
const adapter = await gpu.requestAdapter();
const names = ['maxStorageBuffersPerShaderStage', 'maxComputeWorkgroupStorageSize'];
const requiredLimits = Object.fromEntries(names.map((name) => [name, adapter.limits[name]]));
const device = await adapter.requestDevice({ requiredLimits, requiredFeatures: ['subgroups'] });
const found = {};
for (const file of readdirSync(process.argv[2]).filter((name) => name.endsWith('.wgsl'))) {
  const code = readFileSync(`${process.argv[2]}/${file}`, 'utf8');
  device.pushErrorScope('validation');
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  const errors = messages.filter(({ type }) => type === 'error').map((m) => `${m.lineNum}:${m.linePos} ${m.message}`);
  const bound = code.split('var<storage').length - 1; // the null adapter has room for eight
  for (const [, entryPoint] of code.matchAll(/@compute[^{]*?fn (\w+)/g)) {
    if (!errors.length && bound <= device.limits.maxStorageBuffersPerShaderStage) device.createComputePipeline({ layout: 'auto', compute: { module, entryPoint } });
  }
  const refused = await device.popErrorScope();
  const large = refused && refused.message.includes('workgroup storage'); // the null adapter has 16 KiB
  if (refused && !errors.length && !large) errors.push(refused.message);
  found[file] = errors;
}
console.log(JSON.stringify(found));
process.exit(0);
