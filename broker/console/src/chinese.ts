// The Chinese texts by the English ones.
export const chinese: Record<string, string> = {};
