// The variables of a session. Tables open in a viewer of their own.
import type { ComponentType } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { json, sessionPath } from "./api";
import type { Execution } from "./execution";
import { lazily } from "./lazy";
import { sessions } from "./live";
import { number, t } from "./preferences";
import { Button, Empty, Icon, report } from "./ui";

type Variable = { name: string; type: string; shape?: number[]; length?: number };
type Viewer = ComponentType<{ id: string; name: string; rows: number; onClose: () => void }>;

const loadTable = lazily(() => import("./table"));
const isTable = (each: Variable) => each.shape?.length === 2 && /DataFrame|Table|RecordBatch/.test(each.type);

export function Variables({ id, isOpen, isLoaded, executions }: { id: string; isOpen: boolean; isLoaded: boolean; executions: Execution[] }) {
  const [variables, setVariables] = useState<Variable[] | null>(null);
  const [shown, setShown] = useState<Variable | null>(null);
  const [viewer, setViewer] = useState<{ View: Viewer } | null>(null);
  const [problem, setProblem] = useState("");
  // The result of each cell has the variables, so that watching costs the session nothing.
  const latest = executions.findLast((each) => each.isComplete)?.result.value ?? null;
  const isIdle = isLoaded && sessions.value.get(id)?.state === "idle";
  const wasAsked = useRef(false);
  const load = () =>
    json<{ variables: Variable[] }>("GET", `${sessionPath(id)}/variables`).then(
      (found) => {
        setProblem("");
        setVariables(found.variables);
      },
      (error: Error) => setProblem(error.message),
    );
  useEffect(() => {
    if (latest?.variables) setVariables(latest.variables as Variable[]);
    else if (isIdle && !wasAsked.current) {
      wasAsked.current = true;
      void load();
    }
  }, [latest, isIdle]);
  const open = async (each: Variable) => {
    try {
      const { TableViewer } = await loadTable();
      setViewer({ View: TableViewer });
      setShown(each);
    } catch (error) {
      report(error);
    }
  };
  return (
    <div class="variables">
      <div class="side-head">
        <span class="faint small">{variables ? t("{0} variables", number(variables.length)) : ""}</span>
        <span class="grow" />
        <Button icon="refresh" label={t("Refresh")} iconOnly kind="ghost" disabled={!isOpen} onClick={load} />
      </div>
      {problem ? (
        <Empty icon="warn" title={problem} />
      ) : !variables?.length ? (
        <Empty icon="cube" title={t("No variables")} />
      ) : (
        <ul class="entries">
          {variables.toReversed().map((each) => (
            <li key={each.name}>
              {isTable(each) && isOpen ? (
                <button type="button" class="entry mono" onClick={() => void open(each)}>
                  <Icon name="table" />
                  {each.name}
                </button>
              ) : (
                <span class="entry mono">{each.name}</span>
              )}
              <span class="faint small type">{each.type.split(".").pop()}</span>
              <span class="faint small num">{each.shape ? each.shape.map(number).join(" × ") : each.length !== undefined ? number(each.length) : ""}</span>
            </li>
          ))}
        </ul>
      )}
      {shown && viewer && <viewer.View id={id} name={shown.name} rows={shown.shape![0]!} onClose={() => setShown(null)} />}
    </div>
  );
}
