# Sourced in the guest: two soft-RoCE devices, rxe0 and rxe1, joined by a virtual cable (v0, v1), so that delay, loss
# and a link that goes down are real. Both ends are in one network namespace, because rxe works in the first one only;
# the rules make traffic between the two local addresses cross the cable.
set -e
# The plain crc32: the one with carry-less multiplication is slower where the processor is emulated.
modprobe -a ib_uverbs rdma_ucm crc32_generic veth rdma_rxe
# 4,500 bytes of frame carry InfiniBand's largest path MTU, 4,096.
ip link add v0 mtu 4500 type veth peer name v1 mtu 4500
ip addr add 10.9.0.1/24 dev v0
ip addr add 10.9.0.2/24 dev v1
for i in v0 v1 all; do
  sysctl -qw "net.ipv4.conf.$i.rp_filter=0" "net.ipv4.conf.$i.accept_local=1" "net.ipv4.conf.$i.arp_ignore=1" \
    "net.ipv4.conf.$i.arp_announce=2"
done
ip link set v0 up
ip link set v1 up
ip rule add pref 1 iif v0 lookup local
ip rule add pref 1 iif v1 lookup local
ip rule add pref 2 to 10.9.0.2 oif v0 lookup 100
ip route add 10.9.0.2/32 dev v0 src 10.9.0.1 table 100
ip rule add pref 2 to 10.9.0.1 oif v1 lookup 101
ip route add 10.9.0.1/32 dev v1 src 10.9.0.2 table 101
ip rule add pref 2 to 10.9.0.2 from 10.9.0.1 lookup 100
ip rule add pref 2 to 10.9.0.1 from 10.9.0.2 lookup 101
ip rule add pref 10 lookup local
ip rule del pref 0
rdma link add rxe0 type rxe netdev v0
rdma link add rxe1 type rxe netdev v1
set +e
