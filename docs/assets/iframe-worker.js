// A page opened from the disk may start no Worker. In its place a hidden frame runs the script, so that search works.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      this.ready = new Promise((done) => frame.addEventListener("load", done, { once: true }));
      addEventListener("message", (event) => {
        if (event.source === inner) this.dispatchEvent(new MessageEvent("message", { data: event.data }));
      });
      this.addEventListener("message", (event) => this.onmessage && this.onmessage(event));
      this.postMessage = (data) => this.ready.then(() => inner.postMessage(data, "*"));
      this.terminate = () => frame.remove();
      const page = inner.document;
      page.open();
      page.write(`<script>
        postMessage = parent.postMessage.bind(parent);
        importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done) => {
          const script = document.createElement("script");
          script.src = url; script.onload = done;
          document.body.append(script);
        })), Promise.resolve());
      <\/script><body><script src="${url}"><\/script></body>`);
      page.close();
    }
  };
}
