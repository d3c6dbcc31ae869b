#!/bin/sh
# Looks at every relative link and image in the Markdown files of the repository,
# and fails if one leads to no file, or to no heading of that file.
set -eu
cd "$(dirname "$0")/.."

# slugs prints the anchors of a file's headings, made the way GitHub makes them.
slugs() {
  awk '
    /^```/ { code = !code }
    code { next }
    /^#+ / {
      sub(/^#+ +/, ""); gsub(/\[|\]\([^)]*\)/, "")
      s = tolower($0); gsub(/[^[:alnum:] _-]/, "", s); gsub(/ /, "-", s)
      print s (seen[s]++ ? "-" seen[s]-1 : "")
    }' "$1"
}

bad=0
for f in $(git ls-files -co --exclude-standard '*.md'); do
  [ -e "$f" ] || continue # deleted, not yet committed
  links=$(awk '
    /^```/ { code = !code }
    code { next }
    {
      gsub(/`[^`]*`/, "")
      while (match($0, /\]\([^) ]+/)) { print substr($0, RSTART + 2, RLENGTH - 2); $0 = substr($0, RSTART + RLENGTH) }
    }' "$f")
  for l in $links; do
    case $l in *://* | mailto:* | /*) continue ;; esac
    path=${l%%#*}
    to=$f
    [ -z "$path" ] || to=$(dirname "$f")/$path
    if [ ! -e "$to" ]; then
      echo "$f: $l leads to no file"
      bad=1
    elif [ "$l" != "$path" ] && [ -f "$to" ] && ! slugs "$to" | grep -qxF -- "${l#*#}"; then
      echo "$f: $l: no such heading in $to"
      bad=1
    fi
  done
done
exit $bad
