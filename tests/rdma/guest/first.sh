#!/bin/sh
# The guest's first process: loads what mounts the host's root, lays a writable layer over it, and hands over to the
# job that the kernel's command line names. With job=none it only says that it came so far (a probe of the accelerator).
export PATH=/bin
mount -t devtmpfs dev /dev
mount -t proc proc /proc
mount -t sysfs sys /sys
while read -r module; do insmod "/modules/$module"; done </modules/order
job=
read -r line </proc/cmdline
for word in $line; do
  case $word in job=*) job=${word#*=} ;; esac
done
if [ "$job" = none ]; then
  echo "uccl-ep-guest: booted"
  poweroff -f
fi
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose hostroot /below || poweroff -f
mount -t tmpfs -o size=80% tmpfs /above
mkdir /above/upper /above/work
mount -t overlay -o lowerdir=/below,upperdir=/above/upper,workdir=/above/work overlay /whole || poweroff -f
mkdir -p /whole/proc /whole/sys /whole/dev /whole/tmp /whole/lib/modules
umount /proc
umount /sys
mount -t devtmpfs dev /whole/dev
exec switch_root /whole "$job"
