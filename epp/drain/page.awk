# Reads an exposition: the numbers of waiting and of running requests, each "-" when it is not there.
# A BEGIN block before this calls term() and want(): which series count, and in which order they are tried.

function term(quantity, alternative, name) {
  terms++
  term_quantity[terms] = quantity
  term_alternative[terms] = alternative
  term_name[terms] = name
  conditions[terms] = 0
  wanted[name] = 1
  if (alternative > alternatives[quantity]) alternatives[quantity] = alternative
}

function want(label, operator, value) {
  conditions[terms]++
  want_label[terms, conditions[terms]] = label
  want_operator[terms, conditions[terms]] = operator
  want_value[terms, conditions[terms]] = value
}

# The labels of a line into label_name[], label_value[] and labels; the rest of the line behind them, or "!" for a bad line.
function read_labels(rest,    i, c, value) {
  labels = 0
  sub(/^[ \t]+/, "", rest)
  if (substr(rest, 1, 1) != "{") return rest
  rest = substr(rest, 2)
  while (1) {
    sub(/^[ \t,]+/, "", rest)
    if (substr(rest, 1, 1) == "}") return substr(rest, 2)
    if (!match(rest, /^[a-zA-Z_][a-zA-Z0-9_]*[ \t]*=[ \t]*"/)) return "!"
    labels++
    label_name[labels] = substr(rest, 1, RLENGTH - 1)
    sub(/[ \t]*=[ \t]*$/, "", label_name[labels])
    rest = substr(rest, RLENGTH + 1)
    value = ""
    while (1) {
      if (!match(rest, /["\\]/)) return "!"
      value = value substr(rest, 1, RSTART - 1)
      c = substr(rest, RSTART, 1)
      rest = substr(rest, RSTART + 1)
      if (c == "\"") break
      c = substr(rest, 1, 1)
      value = value (c == "n" ? "\n" : c == "\\" || c == "\"" ? c : "\\" c)
      rest = substr(rest, 2)
    }
    label_value[labels] = value
  }
}

function value_of(name,    i) {
  for (i = 1; i <= labels; i++) if (label_name[i] == name) return label_value[i]
  return ""
}

function fulfils(t,    i, found, operator, same) {
  for (i = 1; i <= conditions[t]; i++) {
    found = value_of(want_label[t, i])
    operator = want_operator[t, i]
    if (operator == "=" || operator == "!=") same = (found "" == want_value[t, i] "")
    else same = (found ~ ("^(" want_value[t, i] ")$"))
    if (same == (substr(operator, 1, 1) == "!")) return 0
  }
  return 1
}

function is_fixed(t, label,    i) {
  for (i = 1; i <= conditions[t]; i++) if (want_label[t, i] == label && want_operator[t, i] == "=") return 1
  return 0
}

# The labels that tell engines apart, in the order of their names.
function engine_of(t,    i, j, n, names, pairs, swap, key) {
  n = 0
  for (i = 1; i <= labels; i++) {
    if (label_name[i] in replica || label_name[i] == "priority" || is_fixed(t, label_name[i])) continue
    n++
    pairs[n] = label_name[i] "=" label_value[i]
    for (j = n; j > 1 && pairs[j - 1] > pairs[j]; j--) { swap = pairs[j]; pairs[j] = pairs[j - 1]; pairs[j - 1] = swap }
  }
  key = ""
  for (i = 1; i <= n; i++) key = key "\001" pairs[i]
  return key
}

# A series: the highest of its replicas counts.
function count(t, number,    key, priority, at) {
  key = engine_of(t)
  priority = value_of("priority")
  at = t SUBSEP key SUBSEP priority
  if (!(at in highest)) {
    series[t]++
    series_key[t, series[t]] = key
    series_priority[t, series[t]] = priority
    series_at[t, series[t]] = at
    highest[at] = number
    if (priority == "") has_total[t, key] = 1
  }
  if (number > highest[at]) highest[at] = number
}

# The sum of a term; of SGLang's priorities only the total, when it is there.
function sum_of(t,    i, sum) {
  sum = 0
  for (i = 1; i <= series[t]; i++)
    if (series_priority[t, i] == "" || !((t, series_key[t, i]) in has_total)) sum += highest[series_at[t, i]]
  return sum
}

function number_of(quantity,    a, t, sum, found) {
  for (a = 1; a <= alternatives[quantity]; a++) {
    sum = found = 0
    for (t = 1; t <= terms; t++)
      if (term_quantity[t] == quantity && term_alternative[t] == a && series[t] > 0) { found = 1; sum += sum_of(t) }
    if (found) return sprintf("%.10g", sum)
  }
  return "-"
}

BEGIN {
  blank = 1
  counted = form ~ /^count:/ ? "\"" substr(form, 7) "\"" : ""
}

counted != "" { # a JSON page: each time that this member is true is a running request
  if (index($0, counted)) known = 1
  occurrences += gsub(counted "[ ]*:[ ]*true", "")
  next
}

{
  line = $0
  sub(/\r$/, "", line)
  sub(/^[ \t]+/, "", line)
  if (line ~ /[^ \t]/) blank = 0
  if (!match(line, /^[a-zA-Z_:][a-zA-Z0-9_:]*/)) next
  name = substr(line, 1, RLENGTH)
  if (!(name in wanted)) next
  rest = read_labels(substr(line, RLENGTH + 1))
  sub(/^[ \t]+/, "", rest)
  # Infinite, not a number, negative or more than a server can have: unknown is better than wrong.
  if (!match(rest, /^[+]?([0-9]+([.][0-9]*)?|[.][0-9]+)([eE][+-]?[0-9]+)?([ \t]|$)/)) next
  number = substr(rest, 1, RLENGTH)
  sub(/^[+]/, "", number)
  number = number + 0
  if (number > 1000000000) next
  for (t = 1; t <= terms; t++) if (term_name[t] == name && fulfils(t)) count(t, number)
}

END {
  if (counted != "") print "-", known ? occurrences + 0 : "-", "page"
  else print number_of("waiting"), number_of("running"), blank ? "blank" : "page"
}
