// Serves a built web application as `vite preview` does, without Vite: `node preview.mjs FOLDER PORT`.
//
// The application's own interface for states is a plugin in its Vite configuration; it runs unchanged. Needs Node's standard
// library alone. All pages are read before the first request, so that no program of an agent's changes one.

import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const KINDS = {
  '.css': 'text/css', '.gif': 'image/gif', '.html': 'text/html; charset=utf-8', '.ico': 'image/x-icon', '.jpeg': 'image/jpeg',
  '.jpg': 'image/jpeg', '.js': 'text/javascript', '.json': 'application/json', '.map': 'application/json',
  '.mjs': 'text/javascript', '.pdf': 'application/pdf', '.png': 'image/png', '.svg': 'image/svg+xml', '.txt': 'text/plain',
  '.wasm': 'application/wasm', '.webp': 'image/webp', '.woff': 'font/woff', '.woff2': 'font/woff2', '.xml': 'text/xml',
};

const CONFIGS = ['vite.config.bundled.mjs', 'vite.config.mjs', 'vite.config.js'];

/** Handlers in order, as Connect calls them: each for the addresses below its route, which it sees without the route. */
class Middlewares {
  constructor() {
    this.layers = [];
  }

  use(route, handler) {
    const [at, call] = typeof route === 'string' ? [route.replace(/\/$/, ''), handler] : ['', route];
    this.layers.push({ at, call });
    return this;
  }

  handle(request, response) {
    const address = request.url;
    request.originalUrl ??= address;
    let index = 0;
    const fail = (error) => {
      if (!response.headersSent) response.writeHead(500, { 'Content-Type': 'text/plain' });
      response.end(String(error?.message ?? error));
    };
    const next = (error) => {
      request.url = address;
      if (error) return fail(error);
      const layer = this.layers[index++];
      if (!layer) {
        response.writeHead(404, { 'Content-Type': 'text/plain' });
        return response.end('not found');
      }
      const place = address.split('?')[0];
      const begins = place.toLowerCase().startsWith(layer.at.toLowerCase());
      if (!begins || !['', '/', '.'].includes(place.charAt(layer.at.length))) return next();
      const rest = address.slice(layer.at.length);
      request.url = rest.startsWith('/') ? rest : `/${rest}`;
      try {
        Promise.resolve(layer.call(request, response, next)).catch(fail);
      } catch (thrown) {
        fail(thrown);
      }
    };
    next();
  }
}

/** Address -> content of every file below a folder. */
function readPages(folder, below = '/') {
  const pages = new Map();
  for (const entry of fs.readdirSync(folder, { withFileTypes: true })) {
    const place = path.join(folder, entry.name);
    if (entry.isDirectory()) readPages(place, `${below}${entry.name}/`).forEach((page, name) => pages.set(name, page));
    else if (entry.isFile()) pages.set(below + entry.name, fs.readFileSync(place));
  }
  return pages;
}

/** Answers with a page; an address without one is the application's own business, which its first page sees to. */
function servePages(pages, base) {
  return (request, response, next) => {
    if (!['GET', 'HEAD'].includes(request.method)) return next();
    let name;
    try {
      name = decodeURIComponent(request.url.split(/[?#]/)[0]);
    } catch {
      return next();
    }
    if (base !== '/' && name.startsWith(base)) name = name.slice(base.length - 1);
    const found = pages.has(name) ? name : pages.has(`${name}index.html`) ? `${name}index.html` : '/index.html';
    if (found === '/index.html' && path.extname(name) && name !== found) return next();
    const page = pages.get(found);
    const kind = KINDS[path.extname(found).toLowerCase()] ?? 'application/octet-stream';
    response.writeHead(200, { 'Content-Type': kind, 'Content-Length': page.length, 'Cache-Control': 'no-cache' });
    response.end(request.method === 'HEAD' ? undefined : page);
  };
}

/** The application's configuration. Node loads fewer things than the program that bundles a configuration for Vite. */
async function readConfig() {
  const name = CONFIGS.find((one) => fs.existsSync(one));
  try {
    return (await import(pathToFileURL(path.resolve(name)))).default;
  } catch (error) {
    if (!['ERR_MODULE_NOT_FOUND', 'ERR_UNKNOWN_FILE_EXTENSION', 'ERR_UNSUPPORTED_DIR_IMPORT'].includes(error.code)) throw error;
    const step = `bundle it as docs/how-to/tasks.md says, and import the tasks again`;
    console.error(`${path.basename(process.cwd())}/${name} imports what Node alone cannot load: ${step}. ${error.message}`);
    process.exit(1);
  }
}

async function main() {
  const [folder, port] = process.argv.slice(2);
  process.chdir(folder);
  let config = await readConfig();
  if (typeof config === 'function') config = config({ command: 'serve', mode: 'production', isPreview: true, isSsrBuild: false });
  config = await config;
  const middlewares = new Middlewares();
  const httpServer = http.createServer((request, response) => middlewares.handle(request, response));
  const root = process.cwd();
  const server = { middlewares, httpServer, config: { ...config, root, logger: console } };
  const last = [];
  for (const plugin of (await Promise.all([config.plugins].flat(Infinity))).flat(Infinity)) {
    const hook = plugin?.configurePreviewServer ?? plugin?.configureServer;
    const after = await (hook?.handler ?? hook)?.call(plugin, server);
    if (typeof after === 'function') last.push(after);
  }
  middlewares.use(servePages(readPages(config.build?.outDir ?? 'dist'), config.base?.startsWith('/') ? config.base : '/'));
  for (const after of last) await after();
  httpServer.listen(Number(port), '127.0.0.1');
}

await main();
