# Sourced by the setup scripts, which set `venv`, `lock` and `inputs` (files the environment is made from) before they call these.

fail() { echo "$(basename "$0" .sh): $*" >&2; exit 1; }

# Leaves `wanted`, the hash of what goes in; ends the script where the environment is up to date.
end_if_up_to_date() {
  wanted=$(cat "$lock" "${inputs[@]}" | sha256sum | cut -d' ' -f1)
  if [[ -f $venv/.rsipo-lock && $(<"$venv/.rsipo-lock") == "$wanted" ]]; then exit 0; fi
}

# Leaves `python`, a Python 3.11 that can make environments; checks for the compiler too.
find_python() {
  local candidate right='import sys; sys.exit(sys.version_info[:2] != (3, 11))'
  python=${PYTHON:-}
  if [[ -z $python ]]; then
    for candidate in python3.11 python3 python; do
      if command -v "$candidate" >/dev/null && "$candidate" -c "$right" 2>/dev/null; then python=$candidate; break; fi
    done
  fi
  [[ -n $python ]] || fail "the locked environment is for Python 3.11, which was not found; install it or set PYTHON=/path/to/python3.11"
  "$python" -c "$right" || fail "$python is $("$python" -V 2>&1); the locked environment is for Python 3.11"
  "$python" -c 'import venv, ensurepip' 2>/dev/null || fail "$python has no venv module; on Debian: apt-get install python3-venv"
  command -v g++ >/dev/null || fail "fast-downward-textworld is built from source and needs a C++ compiler; on Debian: apt-get install build-essential"
}

# need_disk GIB
need_disk() {
  local free_kib
  free_kib=$(df -Pk . | awk 'NR == 2 {print $4}')
  ((free_kib > $1 * 1024 * 1024)) || fail "the environment needs $1 GiB of free disk here, $((free_kib / 1024)) MiB are free"
}

# Makes the environment where it is missing; leaves `pip`, the command that installs into it.
make_environment() {
  [[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
  pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet)
  "${pip[@]}" install "pip==25.3"
}

finish() {
  echo "$wanted" >"$venv/.rsipo-lock"
  echo "$(basename "$0" .sh): done"
}
