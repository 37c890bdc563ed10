"""The usual analyses: functions of a DataFrame and a language that return
`{markdown, data, shape, summary}`.

The source of this module is the beginning of a cell in the sandbox. Its names begin with `_kb_`. Each
analysis ends with two or three sentences that say what its figures mean.
"""

from typing import Any

_KB_TEXTS = {
    "descriptive": (
        "## Descriptive statistics|## 描述性统计",
        "The table has {rows} rows and {columns} columns, of which {numeric} are numeric.|"
        "该表共有 {rows} 行、{columns} 列，其中 {numeric} 列为数值列。",
        "{name} varies the most relative to its mean: {mean} on average, from {low} to {high}.|"
        "相对于均值，{name} 的波动最大：平均值为 {mean}，范围从 {low} 到 {high}。",
        "{missing} of all values are missing.|缺失值占全部数据的 {missing}。",
    ),
    "missing": (
        "## Missing values|## 缺失值",
        "No value is missing in the {rows} rows. The table can be used without filling anything in.|"
        "{rows} 行数据中没有缺失值。无需填补即可使用。",
        "{count} of {columns} columns have missing values; {name} has the most, {share} of its rows.|"
        "{columns} 列中有 {count} 列存在缺失值；{name} 缺失最多，占其行数的 {share}。",
        "{complete} of {rows} rows are complete. Results that drop the others speak for these rows only.|"
        "{rows} 行中有 {complete} 行完整。若删除其余行，结论仅适用于这些完整的行。",
    ),
    "correlation": (
        "## Correlation|## 相关性",
        "A correlation needs two numeric columns with several different values, "
        "and this table has {count}. No figure can be given.|相关性分析需要至少两个取值不同的数值列，"
        "而该表只有 {count} 个。无法给出结果。",
        "{a} and {b} are related the most: r = {r}, a {strength} {sign} relation.|"
        "{a} 与 {b} 的相关性最高：r = {r}，为{strength}{sign}相关。",
        "A correlation is no proof of a cause, and r sees only straight lines.|"
        "相关并不意味着因果，且 r 只反映线性关系。",
    ),
    "group": (
        "## Groups|## 分组",
        "There is no column with a few repeated values to group by. "
        "Name one with a question, or send code.|"
        "没有取值重复的列可供分组。请在问题中指明列名，或发送代码。",
        "By {key} there are {count} groups; the largest is {top}, with {size} of {rows} rows.|"
        "按 {key} 分为 {count} 组；最大的是 {top}，占 {rows} 行中的 {size} 行。",
        "The mean of {value} is highest in {best} ({high}) and lowest in {worst} ({low}).|"
        "{value} 的平均值在 {best} 最高（{high}），在 {worst} 最低（{low}）。",
    ),
    "trend": (
        "## Trend|## 趋势",
        "There is no numeric column to follow over time. No trend can be given.|"
        "没有可随时间观察的数值列。无法给出趋势。",
        "Over {n} points ordered by {key}, {value} goes from {first} to {last} ({change}).|"
        "按 {key} 排序的 {n} 个点中，{value} 从 {first} 变为 {last}（{change}）。",
        "A straight line through the points is {direction}, and explains {r2} of the variation.|"
        "拟合直线呈{direction}趋势，可解释 {r2} 的变化。",
        "the order of rows|行的顺序",
    ),
    "outliers": (
        "## Outliers|## 异常值",
        "There is no numeric column, so that no value can lie outside of a range.|"
        "没有数值列，因此无法判断异常值。",
        "No value lies more than 1.5 interquartile ranges outside of the middle half of its column.|"
        "没有任何值超出其列四分位距的 1.5 倍范围。",
        "{count} values lie more than 1.5 interquartile ranges outside of the middle half of their column; "
        "most are in {name}: {n}, {share} of its values.|共有 {count} 个值超出四分位距的 1.5 倍范围；"
        "其中 {name} 最多：{n} 个，占其数据的 {share}。",
        "An outlier may be an error or the most interesting case: look at these rows before dropping them.|"
        "异常值可能是错误，也可能是最值得关注的情况：删除前请先查看这些行。",
    ),
    "distribution": (
        "## Distribution|## 分布",
        "There is no numeric column. No distribution can be drawn.|没有数值列。无法绘制分布图。",
        "Half of the values of {name} lie between {low} and {high}; the median is {median}.|"
        "{name} 有一半的值介于 {low} 与 {high} 之间；中位数为 {median}。",
        "Of all columns {skewed} is the most skewed ({skew}): {meaning}.|"
        "所有列中 {skewed} 的偏度最大（{skew}）：{meaning}。",
    ),
}
_KB_WORDS = {
    "weak": "弱",
    "moderate": "中等",
    "strong": "强",
    "positive": "正",
    "negative": "负",
    "rising": "上升",
    "falling": "下降",
    "level": "平稳",
    "a long tail of large values": "存在较大的长尾值",
    "a long tail of small values": "存在较小的长尾值",
    "nearly symmetric": "近似对称",
}


def _kb_number(value: Any) -> str:
    return f"{value:,.4g}" if abs(value) < 10_000 else f"{value:,.0f}"


def _kb_share(value: float) -> str:
    return f"{value:.1%}"


def _kb_words(kind: str, language: str) -> Any:
    """The sentences of an analysis in the language."""
    chosen = [each.split("|")[language == "zh"] for each in _KB_TEXTS[kind]]
    return [each.strip() for each in chosen]


def _kb_word(word: str, language: str) -> str:
    return _KB_WORDS[word] if language == "zh" else word


def _kb_numeric(df: Any) -> Any:
    """The numeric columns, without those of bools and complex numbers, by text labels."""
    import numpy

    found = df.select_dtypes("number").select_dtypes(exclude=["complexfloating", "timedelta"])
    found = found.loc[:, ~found.columns.duplicated()]
    found.columns = [str(each) for each in found.columns]
    return (
        found.astype("float64")
        .replace([numpy.inf, -numpy.inf], numpy.nan)
        .dropna(axis=1, how="all")
    )


def _kb_answer(title: str, table: Any, sentences: Any, language: str) -> Any:
    summary = ("" if language == "zh" else " ").join(sentences)
    blocks = [title]
    if table is not None and len(table):
        blocks.append(table.head(50).to_markdown(index=False, floatfmt=".4g"))
    blocks.append(summary)
    rows, columns = (0, 0) if table is None else table.shape
    data = None if table is None else table.head(500)
    return {
        "markdown": "\n\n".join(blocks),
        "data": data,
        "shape": [rows, columns],
        "summary": summary,
    }


def _kb_descriptive(df: Any, language: str) -> Any:
    title, size, varied, missing = _kb_words("descriptive", language)
    numeric = _kb_numeric(df)
    sentences = [size.format(rows=len(df), columns=len(df.columns), numeric=len(numeric.columns))]
    if len(numeric.columns):
        spread = (numeric.std() / numeric.mean().abs().replace(0, float("nan"))).dropna()
        name = spread.idxmax() if len(spread) else numeric.columns[0]
        column = numeric[name]
        low, high = _kb_number(column.min()), _kb_number(column.max())
        sentences.append(
            varied.format(name=name, mean=_kb_number(column.mean()), low=low, high=high)
        )
    if df.size:
        sentences.append(missing.format(missing=_kb_share(float(df.isna().to_numpy().mean()))))
    table = None
    if len(df.columns):
        table = df.describe(include="all").T.rename_axis("column").reset_index()
        table["column"] = table["column"].map(str)
    return _kb_answer(title, table, sentences, language)


def _kb_missing(df: Any, language: str) -> Any:
    import pandas

    title, nothing, most, complete = _kb_words("missing", language)
    counts = df.isna().sum().to_numpy()
    names = [str(each) for each in df.columns]
    shares = [count / max(len(df), 1) for count in counts]
    table = pandas.DataFrame({"column": names, "missing": counts, "share": shares})
    table = table.sort_values("missing", ascending=False, kind="stable", ignore_index=True)
    if not counts.sum():
        return _kb_answer(title, table, [nothing.format(rows=len(df))], language)
    first = table.iloc[0]
    sentences = [
        most.format(
            count=int((counts > 0).sum()),
            columns=len(names),
            name=first["column"],
            share=_kb_share(first["share"]),
        ),
        complete.format(complete=len(df.dropna()), rows=len(df)),
    ]
    return _kb_answer(title, table, sentences, language)


def _kb_correlation(df: Any, language: str) -> Any:
    title, too_few, highest, caution = _kb_words("correlation", language)
    numeric = _kb_numeric(df)
    numeric = numeric.loc[:, numeric.nunique() > 1]
    names = list(numeric.columns)
    matrix = numeric.corr()
    pairs = [
        (abs(matrix.loc[a, b]), a, b)
        for place, a in enumerate(names)
        for b in names[place + 1 :]
        if matrix.loc[a, b] == matrix.loc[a, b]
    ]
    if not pairs:
        return _kb_answer(title, None, [too_few.format(count=len(names))], language)
    size, a, b = max(pairs)
    r = matrix.loc[a, b]
    strength = "strong" if size >= 0.7 else "moderate" if size >= 0.4 else "weak"
    sentence = highest.format(
        a=a,
        b=b,
        r=f"{r:.2f}",
        strength=_kb_word(strength, language),
        sign=_kb_word("positive" if r > 0 else "negative", language),
    )
    table = matrix.rename_axis("column").reset_index()
    return _kb_answer(title, table, [sentence, caution], language)


def _kb_group(df: Any, language: str) -> Any:
    title, nothing, groups, means = _kb_words("group", language)
    numeric = _kb_numeric(df)
    keys = [
        name
        for name in df.columns[~df.columns.duplicated()]
        if str(name) not in numeric.columns
        and 1 < df[name].astype(str).nunique() <= max(2, len(df) // 2)
    ]
    if not keys:
        return _kb_answer(title, None, [nothing], language)
    key = min(keys, key=lambda name: df[name].astype(str).nunique())
    by = df[key].astype(object).where(df[key].notna(), "—").map(str).rename(str(key))
    sizes = by.value_counts()
    table = sizes.rename("count").rename_axis(str(key)).reset_index()
    sentences = [
        groups.format(
            key=key, count=len(sizes), top=sizes.index[0], size=sizes.iloc[0], rows=len(df)
        )
    ]
    if len(numeric.columns):
        averages = numeric.groupby(by.to_numpy()).mean()
        table = table.merge(
            averages.add_prefix("mean "), left_on=str(key), right_index=True, how="left"
        )
        value = numeric.columns[-1]
        column = averages[value].dropna()
        if len(column):
            best, worst = column.idxmax(), column.idxmin()
            high, low = _kb_number(column[best]), _kb_number(column[worst])
            sentences.append(means.format(value=value, best=best, high=high, worst=worst, low=low))
    return _kb_answer(title, table, sentences, language)


def _kb_times(df: Any) -> Any:
    """The name of the first column of times, or of years, and its values; or None."""
    import warnings

    import pandas

    for name in df.columns[~df.columns.duplicated()]:
        column = df[name]
        if pandas.api.types.is_datetime64_any_dtype(column):
            return name, column
        if pandas.api.types.is_numeric_dtype(column):
            known = column.dropna()
            is_year = str(name).strip().lower() in ("year", "年", "年份")
            if is_year and len(known) and known.between(1000, 3000).all():
                return name, pandas.to_datetime(
                    column.astype("Int64").astype("string"), format="%Y"
                )
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            texts = column.astype("string").str.replace(r"[年月]", "-", regex=True).str.strip("-日")
            times = pandas.to_datetime(texts, errors="coerce")
        if len(times) and times.notna().sum() >= max(2, 0.9 * column.notna().sum()):
            return name, times
    return None


def _kb_trend(df: Any, language: str) -> Any:
    import numpy

    title, nothing, course, line, order = _kb_words("trend", language)
    found = _kb_times(df)
    numeric = _kb_numeric(df)
    key = order
    if found is not None:
        key = str(found[0])
        numeric = numeric.drop(columns=key, errors="ignore")
    if not len(numeric.columns) or numeric.dropna(how="all").shape[0] < 2:
        return _kb_answer(title, None, [nothing], language)
    if found is None:
        table = numeric.reset_index(drop=True).rename_axis(key).reset_index()
    else:
        table = numeric.groupby(found[1].to_numpy()).sum(min_count=1).rename_axis(key).reset_index()
    value = numeric.columns[-1]
    known = table[[key, value]].dropna()
    if len(known) < 2:
        return _kb_answer(title, None, [nothing], language)
    y = known[value].to_numpy()
    x = known[key].to_numpy()
    if found is not None:
        x = x.astype("datetime64[s]")
    x = x.astype("float64")
    x = (x - x.min()) / max(x.max() - x.min(), 1e-9)
    slope, start = numpy.polyfit(x, y, 1)
    total = ((y - y.mean()) ** 2).sum()
    r2 = 1 - ((y - slope * x - start) ** 2).sum() / total if total else 0.0
    direction = "level" if r2 < 0.1 else "rising" if slope > 0 else "falling"
    change = _kb_share((y[-1] - y[0]) / abs(y[0])) if y[0] else _kb_number(y[-1] - y[0])
    first, last = _kb_number(y[0]), _kb_number(y[-1])
    change = change if change.startswith("-") else f"+{change}"
    sentences = [
        course.format(n=len(y), key=key, value=value, first=first, last=last, change=change),
        line.format(direction=_kb_word(direction, language), r2=_kb_share(max(float(r2), 0.0))),
    ]
    return _kb_answer(title, table, sentences, language)


def _kb_outliers(df: Any, language: str) -> Any:
    import pandas

    title, nothing, none, most, caution = _kb_words("outliers", language)
    numeric = _kb_numeric(df)
    if not len(numeric.columns):
        return _kb_answer(title, None, [nothing], language)
    low, high = numeric.quantile(0.25), numeric.quantile(0.75)
    room = 1.5 * (high - low)
    outside = (numeric < low - room) | (numeric > high + room)
    counts = outside.sum()
    table = pandas.DataFrame(
        {
            "column": list(numeric.columns),
            "lower bound": (low - room).to_numpy(),
            "upper bound": (high + room).to_numpy(),
            "outliers": counts.to_numpy(),
        }
    ).sort_values("outliers", ascending=False, kind="stable", ignore_index=True)
    if not counts.sum():
        return _kb_answer(title, table, [none, caution], language)
    name = counts.idxmax()
    share = _kb_share(counts[name] / max(int(numeric[name].notna().sum()), 1))
    sentence = most.format(count=int(counts.sum()), name=name, n=int(counts[name]), share=share)
    return _kb_answer(title, table, [sentence, caution], language)


def _kb_distribution(df: Any, language: str) -> Any:
    import matplotlib.pyplot as plt
    import pandas

    title, nothing, middle, shape = _kb_words("distribution", language)
    numeric = _kb_numeric(df)
    if not len(numeric.columns):
        return _kb_answer(title, None, [nothing], language)
    shown = list(numeric.columns[:9])
    across = min(3, len(shown))
    down = -(-len(shown) // across)
    figure, axes = plt.subplots(down, across, figsize=(4 * across, 3 * down), squeeze=False)
    for place, axis in enumerate(axes.flat):
        axis.set_visible(place < len(shown))
        if place < len(shown):
            axis.hist(numeric[shown[place]].dropna(), bins=min(30, max(5, len(df) // 5)))
            axis.set_title(shown[place])
    figure.tight_layout()
    plt.show()
    plt.close(figure)
    parts = numeric.quantile([0, 0.25, 0.5, 0.75, 1]).T
    skew = numeric.skew()
    table = pandas.DataFrame(parts.to_numpy(), columns=["min", "25%", "median", "75%", "max"])
    table.insert(0, "column", list(numeric.columns))
    table["skew"] = skew.to_numpy()
    known = skew.dropna()
    name = known.abs().idxmax() if len(known) else numeric.columns[0]
    quarter, median, three_quarters = (_kb_number(each) for each in parts.loc[name].iloc[1:4])
    sentences = [middle.format(name=name, low=quarter, high=three_quarters, median=median)]
    if len(known):
        value = known[name]
        meaning = "a long tail of large values" if value > 0 else "a long tail of small values"
        if abs(value) < 0.5:
            meaning = "nearly symmetric"
        words = _kb_word(meaning, language)
        sentences.append(shape.format(skewed=name, skew=f"{value:.2f}", meaning=words))
    return _kb_answer(title, table, sentences, language)


_kb_usual = {
    "descriptive": _kb_descriptive,
    "missing": _kb_missing,
    "correlation": _kb_correlation,
    "group": _kb_group,
    "trend": _kb_trend,
    "outliers": _kb_outliers,
    "distribution": _kb_distribution,
}
