() => {
  // The page as a model reads it: text with Markdown for headings, lists and links, and fields with selectors.
  const MAX_TEXT = 20000, MAX_LINKS = 100, MAX_NODES = 50000;
  const BLOCK = new Set("ADDRESS ARTICLE ASIDE BLOCKQUOTE BODY DD DIV DL DT FIELDSET FIGURE FOOTER FORM H1 H2 H3 H4 H5 H6 HEADER HR LI MAIN NAV OL P PRE SECTION TABLE TR UL DETAILS SUMMARY BR LEGEND".split(" "));
  const SKIPPED = new Set("SCRIPT STYLE NOSCRIPT TEMPLATE SVG HEAD IFRAME OBJECT CANVAS VIDEO AUDIO".split(" "));
  const parts = [], links = new Map();
  let size = 0, nodes = 0, truncated = false;
  const add = (text) => { if (size < MAX_TEXT) { parts.push(text); size += text.length; } else truncated = true; };
  const clean = (text) => (text || "").replace(/\s+/g, " ").trim();
  const selectorOf = (e) => {
    const tag = e.tagName.toLowerCase();
    if (e.id) return "#" + CSS.escape(e.id);
    const name = e.getAttribute("name");
    if (name) return `${tag}[name="${CSS.escape(name)}"]` + (e.type === "radio" ? `[value="${CSS.escape(e.value)}"]` : "");
    const same = [...document.querySelectorAll(tag)];
    return same.length === 1 ? tag : `${tag} >> nth=${same.indexOf(e)}`;
  };
  const field = (e) => {
    const type = e.tagName === "INPUT" ? e.type : e.tagName.toLowerCase();
    if (type === "hidden") return "";
    const label = clean(e.labels && e.labels[0] ? e.labels[0].innerText : "") || e.getAttribute("aria-label") || e.placeholder || "";
    let value = "";
    if (type === "checkbox" || type === "radio") value = e.checked ? " checked" : "";
    else if (type === "select") value = " options=" + JSON.stringify([...e.options].slice(0, 20).map((o) => clean(o.text)));
    else if (type === "select-one" || type === "password") value = "";
    else if (e.value) value = " value=" + JSON.stringify(e.value.slice(0, 200));
    return `[${type}${label ? " " + JSON.stringify(label.slice(0, 100)) : ""} selector=${selectorOf(e)}${value}]`;
  };
  const walk = (node) => {
    if (++nodes > MAX_NODES || truncated) { truncated = true; return; }
    if (node.nodeType === Node.TEXT_NODE) { add(node.nodeValue.replace(/\s+/g, " ")); return; }
    if (node.nodeType !== Node.ELEMENT_NODE) return;
    const tag = node.tagName.toUpperCase();
    if (SKIPPED.has(tag)) return;
    const style = getComputedStyle(node);
    if (style.display === "none" || style.visibility === "hidden") return;
    if (tag === "INPUT" || tag === "TEXTAREA" || tag === "SELECT") { add(" " + field(node) + " "); return; }
    if (tag === "BUTTON") { add(` [button ${JSON.stringify(clean(node.innerText).slice(0, 100))} selector=${selectorOf(node)}] `); return; }
    if (tag === "IMG") { if (node.alt) add(`[image: ${clean(node.alt).slice(0, 200)}]`); return; }
    if (tag === "A" && node.href && clean(node.innerText)) {
      const text = clean(node.innerText).slice(0, 200);
      if (links.size < MAX_LINKS && !links.has(node.href)) links.set(node.href, text);
      add(`[${text}](${node.href.slice(0, 500)})`);
      return;
    }
    if (BLOCK.has(tag)) add("\n");
    if (/^H[1-6]$/.test(tag)) add("#".repeat(Number(tag[1])) + " ");
    if (tag === "LI") add("- ");
    if (tag === "TD" || tag === "TH") add(" | ");
    for (const child of node.shadowRoot ? node.shadowRoot.childNodes : node.childNodes) walk(child);
    if (BLOCK.has(tag)) add("\n");
  };
  if (document.body) walk(document.body);
  const text = parts.join("").replace(/[ \t]*\n[ \t]*/g, "\n").replace(/\n{3,}/g, "\n\n").replace(/[ \t]{2,}/g, " ").trim();
  return { text: text.slice(0, MAX_TEXT), links: [...links].map(([url, text]) => ({ text, url: url.slice(0, 2000) })), truncated: truncated || text.length > MAX_TEXT };
}
