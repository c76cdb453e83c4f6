# Functions of both tiers, to be sourced.

# Runs a command, below a line with it and the seconds since the start.
step() { printf '\n== %s (at %s s)\n' "$*" "$SECONDS"; "$@"; }

# Installs the Debian packages of missing commands: `need COMMAND=PACKAGE...`.
need() {
    local pair missing=()
    for pair in "$@"; do
        command -v "${pair%%=*}" >/dev/null || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} -eq 0 ] || { apt-get update -q && apt-get install -qy "${missing[@]}"; }
}

# The same for libraries, by their names for pkg-config: `need_libraries NAME=PACKAGE...`.
need_libraries() {
    local pair missing=()
    for pair in "$@"; do
        pkg-config --exists "${pair%%=*}" || missing+=("${pair#*=}")
    done
    [ ${#missing[@]} -eq 0 ] || { apt-get update -q && apt-get install -qy "${missing[@]}"; }
}

# Installs the tools of file systems that tests mount, on a machine where that is possible.
need_file_systems() {
    [ "$(id -u)" != 0 ] || need mkfs.xfs=xfsprogs mkfs.btrfs=btrfs-progs
}
