/* Preloaded into servers: whoever binds to every interface gets the loopback one instead.
 *
 * torch's rendezvous store and Mooncake's handshake and data ports listen on 0.0.0.0 or [::] and have no setting for it. Their
 * peers stand on this machine and connect to 127.0.0.1; the IPv6 wildcard becomes the same address in its mapped form, which a
 * dual-stack socket accepts. Datagram sockets (name look-ups) are left alone.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

int bind(int fd, const struct sockaddr *address, socklen_t length) {
    static int (*next)(int, const struct sockaddr *, socklen_t);
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    int type = 0;
    socklen_t size = sizeof type;

    if (!next) next = (int (*)(int, const struct sockaddr *, socklen_t))dlsym(RTLD_NEXT, "bind");
    if (!address || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) || type != SOCK_STREAM) return next(fd, address, length);
    if (address->sa_family == AF_INET && length >= sizeof v4) {
        memcpy(&v4, address, sizeof v4);
        if (v4.sin_addr.s_addr == htonl(INADDR_ANY)) {
            v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
            return next(fd, (struct sockaddr *)&v4, sizeof v4);
        }
    }
    if (address->sa_family == AF_INET6 && length >= sizeof v6) {
        memcpy(&v6, address, sizeof v6);
        if (IN6_IS_ADDR_UNSPECIFIED(&v6.sin6_addr)) {
            static const unsigned char mapped[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, 1};
            int only6 = 0;
            size = sizeof only6;
            getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only6, &size);
            if (only6) v6.sin6_addr = in6addr_loopback;
            else memcpy(&v6.sin6_addr, mapped, sizeof mapped);
            return next(fd, (struct sockaddr *)&v6, sizeof v6);
        }
    }
    return next(fd, address, length);
}
