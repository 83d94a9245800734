"use strict";
// A worker: MathML of a formula, by Temml (temml.LICENSE); the page ends it where that takes too long.
importScripts("temml.min.js");
onmessage = ({ data }) => {
  let made = null;
  try {
    made = temml.renderToString(data.source, { displayMode: data.display, throwOnError: true, trust: false, xml: true });
  } catch {
    // the page shows the source
  }
  postMessage(made);
};
postMessage("ready");
