// Parts of the page that are loaded when they are needed. A load that fails, because the broker restarts or
// the connection is lost, is tried again.
import { t } from "./preferences";

const PAUSES_MS = [300, 1000, 3000, 10_000];

/** Load a part once. A load that has failed may be asked for again. */
export function lazily<T>(load: () => Promise<T>): () => Promise<T> {
  let loading: Promise<T> | null = null;
  const attempt = async (): Promise<T> => {
    for (const pause of PAUSES_MS) {
      try {
        return await load();
      } catch {
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
    }
    loading = null;
    throw new Error(t("A part of the page cannot be loaded. Load the page again."));
  };
  return () => (loading ??= attempt());
}
