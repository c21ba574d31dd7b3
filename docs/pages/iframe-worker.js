// The theme searches in a Worker, which a browser refuses to a page that was opened from a folder (file://). There this
// stands in for it: the search runs in a hidden frame of the page. Its file's name tells the theme's `offline` plugin to
// load no such thing from elsewhere.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.documentElement.append(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = async (...urls) => {
        for (const each of urls) await this.load(each);
      };
      this.ready = this.load(url);
    }

    load(url) {
      const script = this.inside.document.createElement("script");
      return new Promise((done, failed) => {
        script.onload = done;
        script.onerror = () => failed(new ReferenceError(`the script ${url} is missing`));
        script.src = url;
        this.inside.document.documentElement.append(script);
      });
    }

    postMessage(data) {
      this.ready.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
