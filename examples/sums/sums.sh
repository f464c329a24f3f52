#!/bin/sh
# An environment for Tandem in the shell (docs/environments-protocol.md): its tool adds two numbers, and the reward is 1
# if the number of the column `answer` is among the sums. The file of an episode has the answer and the sums.
cd "${TMPDIR:-/tmp}" || exit
cat <<'GREETING'
{"protocol": 1, "rewards": true, "tools": [{"type": "function", "function": {"name": "add", "description": "Adds two numbers.", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "description": "The first number."}, "b": {"type": "integer", "description": "The second number."}}, "required": ["a", "b"]}, "return": {"type": "integer"}}}]}
GREETING
number() { printf '%s\n' "$2" | sed -n 's/.*"'"$1"'":\(-\{0,1\}[0-9]\{1,17\}\)[,}].*/\1/p'; }
while IFS= read -r line; do # {"id":2,"episode":7,"do":"step","calls":[{"name":"add","arguments":{"a":2,"b":3}}],"text":""}
  id=${line#*:} id=${id%%,*}
  episode=${line#*'"episode":'} episode=${episode%%,*}
  wanted=${line#*'"do":"'} wanted=${wanted%%'"'*}
  case $wanted in
    open) number answer "$line" >"$episode" && answer=',"text":" Go."' ;;
    step)
      replies=$(printf '%s\n' "${line#*'"calls":['}" | sed 's/{"name":"/\
/g' | sed 1d | while IFS= read -r call; do
        a=$(number a "$call") b=$(number b "$call")
        [ -n "$a" ] && [ -n "$b" ] || { printf ',{"content":"a and b must be numbers","failed":true}' && continue; }
        echo $((a + b)) >>"$episode" && printf ',{"content":"%s"}' $((a + b))
      done)
      answer=",\"replies\":[${replies#,}]" ;;
    score)
      answer=",\"reward\":$(sed 1d "$episode" | grep -cxm 1 -e "$(sed 1q "$episode")")" ;;
    *) rm -f "$episode" && answer= ;; # close, and ping, which has the episode 0
  esac
  echo "{\"id\":$id$answer}"
done
