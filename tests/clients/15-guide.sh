#!/usr/bin/env bash
# Every command of the guide and of the operations pages runs as it is written, page by page, in a directory of the
# page's own. tests/guide/README.md says how blocks are tagged, and tests/guide/counts how many there are of each tag.
. "$(dirname "$0")/_lib.sh"
guide=$repository/tests/guide

# What is needed and cannot be had in a test, so that such blocks are counted and named, and not run.
declare -A needs=(
    [build]="compiles the program; ./test and CI do it"
    [systemd]="needs a machine that systemd runs"
    [nbd-module]="needs the kernel's module nbd"
    [libvirt]="needs libvirt"
    [proxmox]="needs Proxmox VE"
    [docker]="needs a Docker daemon"
    [hours]="takes hours"
    [elsewhere]="needs a service, a host or a file of the reader's"
)
# Languages of files and pictures that are shown.
shown=" text toml ini xml json yaml python "

declare -A counts=()
pages_run=()
mapfile -t pages < <(cd "$repository" && ls README.md docs/guide/*.md docs/guide/*/*.md docs/operations/*.md)

# tag PAGE LINE INFO: the tag that counts; fails where the info string says none.
tag() {
    local words word
    read -ra words <<<"$3"
    case ${words[0]} in
        sh) ;;
        text) [ "${words[1]:-}" = output ] && { echo output; return; } ;;&
        *)
            [[ "$shown" == *" ${words[0]} "* ]] && [ "${#words[@]}" = 1 ] && { echo shown; return; }
            return 1
            ;;
    esac
    word=${words[1]:-}
    case $word in
        user | root | guest) echo "$word" ;;
        *) [ -n "${needs[$word]:-}" ] && echo "$word" ;;
    esac
}

# programs_exist BLOCK: whether every program of this repository that a block names can be started.
programs_exist() {
    local program
    for program in $(sed 's/#.*//' "$1" | grep -oE '(^|[[:space:]])(tests|bench)/[^[:space:]]+'); do
        [ -f "$repository/$program" ] || { echo "there is no $program"; return 1; }
    done
}

# compile DIRECTORY: the blocks of a page as one script, which notes the number of each block that went well.
compile() {
    local number line info kind last=
    echo ". $guide/page.sh"
    while IFS=$'\t' read -r number line info; do
        kind=$(tag "$page" "$line" "$info") || continue
        case $kind in
            user | root | guest)
                [ "$kind" = guest ] && [ -z "$have_qemu" ] && continue
                case " $info " in
                    *" serves "*) echo "serve_block $number" ;;
                    *) echo "current=$number; . $1/$number >$1/$number.out 2>&1; echo $number >>$1/done" ;;
                esac
                last=$number
                ;;
            output) echo "current=$number; compare $last $number; echo $number >>$1/done" ;;
        esac
    done <"$1/list"
    echo "end_page"
}

# run_page PAGE: its blocks; everything below a directory of its own, which is also its home.
run_page() {
    local name=${1%.md} home blocks number line info kind ran="" user=()
    name=${name#docs/}
    name=${name//\//-}
    page=$1
    # Short: the paths of sockets have at most 107 bytes.
    home=$work/${#pages_run[@]}
    pages_run+=("$page")
    blocks=$home/blocks
    mkdir -p "$blocks" "$home/h/here"
    if ! /usr/bin/python3 "$guide/blocks.py" "$repository/$page" "$blocks" >"$blocks/list" 2>"$blocks/said"; then
        not_ok "$page" "$(cat "$blocks/said")"
        return
    fi
    while IFS=$'\t' read -r number line info; do
        if ! kind=$(tag "$page" "$line" "$info"); then
            not_ok "$page:$line: the block is tagged" "${info}: see tests/guide/README.md"
            continue
        fi
        counts[$kind]=$((${counts[$kind]:-0} + 1))
        case $kind in
            user | root) ran+=" $kind" ;;
            output | shown) ;;
            guest)
                [ -n "$have_qemu" ] || { echo "not run: $page:$line: there is no qemu-system-x86_64"; continue; }
                ran+=" $kind"
                ;;
            hours)
                echo "not run: $page:$line: ${needs[$kind]}"
                check "$page:$line: its programs exist" programs_exist "$blocks/$number"
                ;;
            *) echo "not run: $page:$line: ${needs[$kind]}" ;;
        esac
    done <"$blocks/list"
    [ -n "$ran" ] || return 0
    if [[ "$ran" == *" root"* ]]; then
        if [ "$(id -u)" != 0 ] || [ ! -c /dev/fuse ]; then
            skip "$page: needs root and /dev/fuse"
            return
        fi
    elif [ "$(id -u)" = 0 ]; then
        # What is for every user runs without any privilege.
        user=(setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all --bounding-set=-all --no-new-privs)
        chown -R 65534:65534 "$home"
    fi
    compile "$blocks" >"$blocks/script"
    : >"$blocks/done"
    chmod a+rw "$blocks/done"
    (
        cd "$home/h/here" || exit
        export HOME=$home/h WEIR_DATA_DIR=$home/h/weir
        export BLOCKS=$blocks PAGE=$page GUIDE=$guide NAME=$name REPOSITORY=$repository
        export PATH=$work/bin:$PATH
        unset XDG_DATA_HOME
        timeout -k 20 "${GUIDE_SECONDS:-300}" "${user[@]}" bash "$blocks/script"
    ) >"$blocks/said" 2>&1 </dev/null
    local status=$?
    while IFS=$'\t' read -r number line info; do
        kind=$(tag "$page" "$line" "$info") || continue
        case $kind in
            user | root | output) ;;
            guest) [ -n "$have_qemu" ] || continue ;;
            *) continue ;;
        esac
        if grep -qx "$number" "$blocks/done"; then
            ok "$page:$line"
        elif [ "$status" != 0 ]; then
            not_ok "$page:$line" "$(cat "$blocks/$number.out" "$blocks/said" 2>/dev/null)"
            # What follows was not run.
            status=0 ran=failed
        elif [ "$ran" = failed ]; then
            not_ok "$page:$line was not run"
        fi
    done <"$blocks/list"
    [ "$status" = 0 ] || not_ok "$page ends in order" "$(cat "$blocks/said")"
}

mkdir "$work/bin"
cp "$weir" "$work/bin/weir" || exit 1
chmod 755 "$work" "$work/bin/weir"
have_qemu=$(command -v qemu-system-x86_64)
[ -z "$have_qemu" ] || install -m 755 "$guide/qemu-system-x86_64" "$work/bin/"

for page in "${pages[@]}"; do
    case $page in *"${GUIDE_PAGE:-}"*) run_page "$page" ;; esac
done

# A page that lost its blocks, or whose blocks are passed over, would look well.
if [ -z "${GUIDE_PAGE:-}" ]; then
    for kind in "${!counts[@]}"; do echo "$kind ${counts[$kind]}"; done | sort >"$work/counts"
    check "as many blocks of each tag as tests/guide/counts says" diff "$guide/counts" "$work/counts"
fi
