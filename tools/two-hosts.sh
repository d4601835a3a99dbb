# Two hosts in network namespaces, h1 and h2, and this machine as the router between them. Sourced by
# the tests of the package, inside the machine or the root that they make for it.

# Makes them: DEVICE1 leads to h1 and DEVICE2 to h2.
two_hosts() { # DEVICE…: without its number
    echo 1 >/proc/sys/net/ipv4/ip_forward
    local n
    for n in 1 2; do
        ip netns add "h$n"
        ip link add "$1$n" type veth peer name eth0 netns "h$n"
        ip address add "10.0.$n.1/24" dev "$1$n"
        ip link set "$1$n" up
        ip -n "h$n" address add "10.0.$n.2/24" dev eth0
        ip -n "h$n" link set eth0 up
        ip -n "h$n" route add default via "10.0.$n.1"
    done
}
