# shellcheck shell=bash
# What the lab scripts share. A lab lives in one private work dir, $KAAS_LAB_DIR, with one folder below it per script.
# All processes of a lab are found by pid files in there, all its network namespaces by names that are written down there:
# two labs with different work dirs have nothing in common, and nothing else on the machine is touched.

export PATH=$PATH:/usr/sbin:/sbin
# shellcheck disable=SC2034 # used by the scripts
lab=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
me=$(basename "$0")
work=${KAAS_LAB_DIR:-}

die() { echo "$me: $*" >&2; exit 1; }

# The comment at the head of the script is its help.
usage() { awk 'NR > 1 { if (!/^#/) exit; sub(/^# ?/, ""); print }' "$0"; }

need_work_dir() {
    [ -n "$work" ] || die "set KAAS_LAB_DIR to a work dir of this lab (or let ./hold make one)"
    case $work in /*) ;; *) die "KAAS_LAB_DIR must be an absolute path" ;; esac
    mkdir -p "$work"
}

# A name for a network namespace that nobody has: written down before it is made, so that `down` finds it always.
new_name() { echo "kaas-$(od -An -N4 -tx4 /dev/urandom | tr -d ' ')"; }

within() { # NAMESPACE COMMAND...: keeps the mount namespace, unlike `ip netns exec`
    local namespace=$1
    shift
    nsenter "--net=/run/netns/$namespace" "$@"
}

# Whether the process of a pid file is there and is the one meant: pids are used again, and killed processes stay
# zombies for a while.
alive() { # PIDFILE WORD-OF-ITS-COMMAND-LINE
    local pid
    pid=$(cat "$1" 2>/dev/null) || return 1
    [ -n "$pid" ] && grep -q '^State:.[^ZX]' "/proc/$pid/status" 2>/dev/null || return 1
    tr '\0' ' ' <"/proc/$pid/cmdline" 2>/dev/null | grep -qF -- "$2"
}

# SIGKILL to the process of a pid file and to its children (a guest's are traced by it), until it is gone.
end() { # PIDFILE WORD
    local pid children
    if alive "$1" "$2"; then
        pid=$(cat "$1")
        children=$(cat "/proc/$pid"/task/*/children 2>/dev/null || true)
        # shellcheck disable=SC2086 # a list of pids
        kill -KILL "$pid" $children 2>/dev/null || true
        for _ in $(seq 200); do alive "$1" "$2" || break; sleep 0.02; done
    fi
    rm -f "$1"
}

signal() { # SIGNAL PIDFILE WORD
    alive "$2" "$3" || die "not running: $(basename "$2" .pid)"
    kill "-$1" "$(cat "$2")"
}

# Starts a daemon in the background, its output in LOG, its pid in PIDFILE. Descriptor 9 is the lock of `hold`.
spawn() { # PIDFILE LOG COMMAND...
    local pidfile=$1 log=$2
    shift 2
    setsid "$@" </dev/null >>"$log" 2>&1 9>&- &
    echo $! >"$pidfile"
}

until_true() { # TENTHS-OF-A-SECOND COMMAND...
    local tenths=$1
    shift
    for _ in $(seq "$tenths"); do
        "$@" && return 0
        sleep 0.1
    done
    return 1
}
