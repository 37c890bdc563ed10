// Appended to the search's worker: sections that have all words come first, and others only if no section has all.
const searchAny = lunr.Index.prototype.search;
lunr.Index.prototype.search = function (query) {
  const required = query
    .split(/\s+/)
    .filter((term) => term && (/^[-+]/.test(term) || lunr.stopWordFilter(term.replace(/\*$/, ""))))
    .map((term) => (/^[-+]/.test(term) ? term : `+${term}`))
    .join(" ");
  const found = required ? searchAny.call(this, required) : [];
  return found.length ? found : searchAny.call(this, query);
};
