// Where blobs come from: the page itself, or the server that sent it.

/** Unpacks raw deflate. */
async function inflate(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream('deflate-raw'));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

function fromBase64(text) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < bytes.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** Blobs in the page. Those past the first ones may still be on their way from the disk. */
class PageSource {
  async blob(number) {
    let element = document.getElementById(`blob-${number}`);
    if (!element && document.readyState === 'loading') {
      await new Promise((done) => document.addEventListener('DOMContentLoaded', done, { once: true }));
      element = document.getElementById(`blob-${number}`);
    }
    if (!element) throw new Error(`the page lacks its part ${number}; it was not saved whole`);
    return inflate(fromBase64(element.textContent));
  }
}

/** Blobs of a server. */
class ServerSource {
  async blob(number) {
    const answer = await fetch(`blob/${number}`);
    if (!answer.ok) throw new Error(`the server refused part ${number}: ${answer.status}`);
    return inflate(await answer.arrayBuffer());
  }
}

function openSource() {
  return document.getElementById('blob-0') ? new PageSource() : new ServerSource();
}
