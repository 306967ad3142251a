// Runs the files that `bitnet export-web` wrote on WebGPU: a launch list that computes one token's step and
// advances the row. A prompt is fed token by token; then the step is repeated, and the tokens are read from `history`.
import { Tokenizer } from './tokenizer.js';

const RING = 64; // capacity of history, in tokens
const BURST = 16; // tokens between two reads of it

export class Stories {
  static async load(base) {
    const get = async (name) => {
      const answer = await fetch(new URL(name, base));
      if (!answer.ok) throw new Error(`${name}: ${answer.status}. Run: bitnet export-web model`);
      return answer;
    };
    const model = await (await get('model.json')).json();
    if (model.format !== 1) throw new Error(`model.json has format ${model.format}, this page reads 1`);
    const adapter = await navigator.gpu?.requestAdapter();
    if (!adapter) throw new Error('this browser offers no WebGPU adapter');
    const device = await adapter.requestDevice();
    const stories = new Stories(model, device, new Tokenizer(await (await get('tokenizer.json')).json()));
    stories.adapter = `${adapter.info.vendor} ${adapter.info.architecture} ${adapter.info.description}`.trim();
    stories.fill(await (await get('weights.bin')).arrayBuffer());
    await stories.build();
    return stories;
  }

  constructor(model, device, tokenizer) {
    Object.assign(this, { model, device, tokenizer });
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    this.buffers = model.buffers.map(({ size }) => device.createBuffer({ size, usage }));
    this.read = device.createBuffer({ size: 4 * (RING + 4), usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST });
  }

  fill(weights) {
    this.model.buffers.forEach(({ size, at }, i) => {
      if (at !== undefined) this.device.queue.writeBuffer(this.buffers[i], 0, weights, at, size);
    });
    const [buffer, offset, size] = this.model.host.tables;
    const table = new Int32Array(size / 4).fill(-1);
    for (let i = 0; i < Math.ceil(this.model.context / 64); i++) table[i] = i; // blocks of the cache, in order
    this.device.queue.writeBuffer(this.buffers[buffer], offset, table);
  }

  async build() {
    const { device, model } = this;
    const modules = model.kernels.map((code) => device.createShaderModule({ code }));
    const made = new Map();
    this.steps = await Promise.all(model.launches.map(async (launch) => {
      const types = [...launch.writes.map((writes) => (writes ? 'storage' : 'read-only-storage')), 'uniform'];
      const key = `${launch.kernel} ${launch.entry} ${types}`;
      if (!made.has(key)) made.set(key, this.pipeline(modules[launch.kernel], launch.entry, types));
      const [pipeline, layout] = await made.get(key);
      const params = device.createBuffer({ size: Math.ceil(launch.params.length / 16) * 16,
        usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
      device.queue.writeBuffer(params, 0, new Uint8Array(launch.params));
      const views = launch.views.map(([buffer, offset, size]) => ({ buffer: this.buffers[buffer], offset, size }));
      const entries = [...views, { buffer: params }].map((resource, binding) => ({ binding, resource }));
      return { pipeline, group: device.createBindGroup({ layout, entries }), grid: launch.grid };
    }));
  }

  async pipeline(module, entryPoint, types) {
    const entries = types.map((type, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } }));
    const layout = this.device.createBindGroupLayout({ entries });
    const whole = this.device.createPipelineLayout({ bindGroupLayouts: [layout] });
    return [await this.device.createComputePipelineAsync({ layout: whole, compute: { module, entryPoint } }), layout];
  }

  write(name, values) {
    const [buffer, offset] = this.model.host[name];
    this.device.queue.writeBuffer(this.buffers[buffer], offset, new Int32Array(values));
  }

  run(times) {
    const encoder = this.device.createCommandEncoder();
    for (let i = 0; i < times; i++) {
      const pass = encoder.beginComputePass();
      for (const { pipeline, group, grid } of this.steps) {
        pass.setPipeline(pipeline);
        pass.setBindGroup(0, group);
        pass.dispatchWorkgroups(...grid);
      }
      pass.end();
    }
    this.device.queue.submit([encoder.finish()]);
  }

  async history() {
    const [buffer, offset] = this.model.host.history;
    const encoder = this.device.createCommandEncoder();
    encoder.copyBufferToBuffer(this.buffers[buffer], offset, this.read, 0, 4 * (RING + 1));
    this.device.queue.submit([encoder.finish()]);
    await this.read.mapAsync(GPUMapMode.READ);
    const values = [...new Int32Array(this.read.getMappedRange())];
    this.read.unmap();
    return values;
  }

  // Greedy continuation of at most `count` tokens; told(text so far, tokens so far) is called after each read.
  async tell(prompt, count, told = () => {}) {
    const { bos, stops, context } = this.model;
    const ids = [...(bos === null ? [] : [bos]), ...this.tokenizer.encode(prompt)];
    const room = Math.min(count, context - ids.length);
    if (!ids.length || room < 1) throw new Error(`a prompt has 1 to ${context - 1} tokens, not ${ids.length}`);
    ids.forEach((id, position) => {
      this.write('step', [id, position, position, 0]); // blocks lie in order: the slot is the position
      this.write('history', [0]);
      this.run(1);
    });
    const tokens = [];
    let seen = 0, end = false;
    while (!end) {
      const values = await this.history();
      for (const token of values.slice(seen + 1, values[0] + 1)) {
        if (token < 0) throw new Error('the model gave no number: please report this with the name of the GPU');
        if (end || stops.includes(token)) { end = true; break; }
        tokens.push(token);
        end = tokens.length >= room;
      }
      told(this.tokenizer.decode(tokens), tokens.length);
      seen = values[0];
      if (seen + BURST > RING) { this.write('history', [0]); seen = 0; }
      if (!end) this.run(Math.min(BURST, room - tokens.length));
    }
    return { text: this.tokenizer.decode(tokens), tokens };
  }
}
