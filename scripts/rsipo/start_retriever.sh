#!/usr/bin/env bash
# Serve passages on port 8000 of this machine (loopback only), until SIGTERM.
#   bash scripts/rsipo/start_retriever.sh [OPTIONS of rsipo retriever serve]
# The index is $RSIPO_RETRIEVER_INDEX, made by `rsipo retriever build`. Without it: the published corpus and e5 index in
# $SEARCH_DATA/searchR1 with the encoder $RSIPO_RETRIEVER_ENCODER (default $MODELS_ROOT/e5-base-v2); the first start
# checks and hashes them, which takes minutes, and remembers that in $SEARCH_DATA/searchR1/retriever.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

index=${RSIPO_RETRIEVER_INDEX:-}
if [[ -z $index ]]; then
  data=${SEARCH_DATA:-$HOME/.cache/rsipo-search}/searchR1
  index=$data/retriever
  corpus=$data/wiki-18.jsonl
  [[ -f $corpus || ! -f $corpus.gz ]] || corpus+=.gz
  vectors=("$data/e5_Flat.index")
  [[ -f ${vectors[0]} ]] || vectors=("$data"/part_*)
  if [[ ! -f $corpus || ! -f ${vectors[0]} ]]; then
    echo "start_retriever: no wiki-18.jsonl and e5_Flat.index in $data; download them" \
      "(python examples/search/searchr1_download.py --local_dir $data) or set RSIPO_RETRIEVER_INDEX" >&2
    exit 2
  fi
  options=()
  for file in "${vectors[@]}"; do options+=(--vectors "$file"); done
  rsipo retriever build "$index" --corpus "$corpus" --kind matrix "${options[@]}" \
    --encoder "${RSIPO_RETRIEVER_ENCODER:-$MODELS_ROOT/e5-base-v2}"
fi
exec rsipo retriever serve "$index" "$@"
