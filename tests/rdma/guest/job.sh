#!/bin/bash
# The guest's second process, from the host's root: mounts the shared folder (which this file lies in, at the same path
# as outside), makes the soft-RoCE devices, runs the command, leaves its exit code in the share, and powers off.
share=$(dirname "$0")
mount -t proc proc /proc
mount -t sysfs sys /sys
mkdir -p /dev/pts /dev/shm "$share"
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs tmp /var/tmp
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,cache=none,access=any share "$share"
. "$share/environment.sh" # PATH and such, MODULES, FOLDER
: >"$share/started"
ulimit -l unlimited
ulimit -n 65536
hostname guest
echo '127.0.0.1 localhost guest' >/etc/hosts
ip link set lo up
# Where the kernel's own requests for modules look (rxe asks for crc32).
mkdir -p "/lib/modules/$(uname -r)"
mount --bind "$MODULES" "/lib/modules/$(uname -r)"
code=1
if . "$(dirname "${BASH_SOURCE[0]}")/devices.sh"; then
  read -r UCCL_EP_GUEST_READY_S _ </proc/uptime
  export UCCL_EP_GUEST_READY_S
  cd "$FOLDER" || exit 1
  bash "$share/command.sh" </dev/null
  code=$?
fi
echo "$code" >"$share/code"
sync
busybox poweroff -f
