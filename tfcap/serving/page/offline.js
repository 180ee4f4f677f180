"use strict";
/* A service worker: keeps all files of the page in the browser, so that it works without network. A new
   version of the folder gets files of its own, and is shown when no page of the old one is open. */
const FILES = {{files}};
const OWN = `${registration.scope} `, KEPT = `${OWN}{{version}}`;

addEventListener("install", (event) => event.waitUntil((async () => {
  const cache = await caches.open(KEPT);
  await cache.addAll(FILES.map((file) => new Request(file, { cache: "no-cache" })));
})()));
addEventListener("activate", (event) => event.waitUntil((async () => {
  const old = (await caches.keys()).filter((name) => name.startsWith(OWN) && name !== KEPT);
  await Promise.all(old.map((name) => caches.delete(name)));
})()));
addEventListener("fetch", (event) => event.respondWith((async () => {
  const cache = await caches.open(KEPT);
  return await cache.match(event.request, { ignoreSearch: true }) ?? fetch(event.request);
})()));
