#!/bin/sh
# Makes what a run and its workers know each other by, in a folder: an authority of its own (ca.pem), a certificate for the host
# of the run (train.pem, train.key), one for workers (worker.pem, worker.key), and a token.
#
# usage: certificates.sh FOLDER HOST...     every name and address by which workers reach the run
#
# What is there already stays: called again, it adds nothing but what is missing. Remove train.pem to have it made for other hosts.
set -eu

if [ $# -lt 2 ]; then
  echo "usage: certificates.sh FOLDER HOST..." >&2
  exit 2
fi
folder=$1
shift
days=${DAYS:-365}
umask 077
mkdir -p "$folder"

# A new key on a curve that every TLS library knows.
key() {
  openssl genpkey -quiet -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1" 2>/dev/null ||
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"
}

# signed NAME EXTENSIONS: a key, and a certificate for it that the authority signs.
signed() {
  if [ -e "$folder/$1.pem" ]; then
    return
  fi
  key "$folder/$1.key"
  openssl req -new -key "$folder/$1.key" -subj "/CN=tandem $1" -out "$folder/$1.csr"
  printf '%s\n' "basicConstraints=critical,CA:FALSE" "keyUsage=critical,digitalSignature" "$2" >"$folder/$1.ext"
  openssl x509 -req -in "$folder/$1.csr" -CA "$folder/ca.pem" -CAkey "$folder/ca.key" -set_serial "0x$(openssl rand -hex 16)" \
    -days "$days" -extfile "$folder/$1.ext" -out "$folder/$1.pem" 2>/dev/null
  rm "$folder/$1.csr" "$folder/$1.ext"
}

if ! [ -e "$folder/ca.pem" ]; then
  key "$folder/ca.key"
  openssl req -x509 -new -key "$folder/ca.key" -subj "/CN=tandem authority" -days "$days" -out "$folder/ca.pem" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign"
fi

names="DNS:localhost,IP:127.0.0.1"
for host in "$@"; do
  case $host in
    *:* | *[0-9].[0-9]*.[0-9]*.[0-9]*) names="$names,IP:$host" ;;
    *) names="$names,DNS:$host" ;;
  esac
done
signed train "extendedKeyUsage=serverAuth
subjectAltName=$names"
signed worker "extendedKeyUsage=clientAuth"

[ -e "$folder/token" ] || openssl rand -hex 32 >"$folder/token"
