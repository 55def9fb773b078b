/*
 * Copies, receives and sends of libunlade_copier as C++ objects, for C++11 and later. See unlade_copier(3).
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#ifndef UNLADE_COPIER_HPP
#define UNLADE_COPIER_HPP

#include <cerrno>
#include <cstddef>
#include <system_error>

#include <unlade/copier.h>

#ifndef COPIER_SITE
#define COPIER_SITE nullptr
#endif

namespace unlade {

/**
 * A copy in the process's default queue. Its end waits for the copy.
 *
 * Until then nothing else may use the destination, except after sync() of these bytes, and nothing
 * may change the source.
 */
class pending_copy {
public:
    /** No copy. */
    pending_copy() noexcept = default;

    /**
     * Submits a copy of n bytes. Pass COPIER_SITE as the call site: the library learns for each
     * one whether queueing its copies pays.
     */
    pending_copy(void *dst, const void *src, std::size_t n, const copier_site *site) noexcept
        : dst_(static_cast<unsigned char *>(dst)), bytes_(n), is_over_(n == 0)
    {
        copier_amemcpy_at(dst, src, n, site);
    }

    pending_copy(const pending_copy &) = delete;
    pending_copy &operator=(const pending_copy &) = delete;

    pending_copy(pending_copy &&other) noexcept
        : dst_(other.dst_), bytes_(other.bytes_), is_over_(other.is_over_)
    {
        other.is_over_ = true;
    }

    pending_copy &operator=(pending_copy &&other) noexcept
    {
        if (this != &other) {
            finish();
            dst_ = other.dst_;
            bytes_ = other.bytes_;
            is_over_ = other.is_over_;
            other.is_over_ = true;
        }
        return *this;
    }

    /** Waits for the copy. An error is lost here: call sync() to see it. */
    ~pending_copy() { finish(); }

    /**
     * Waits for n bytes from offset on, or for those that the copy has, and returns their address.
     * Throws std::system_error: EFAULT for a bad address, EINVAL for ranges that overlap.
     */
    unsigned char *sync(std::size_t offset, std::size_t n)
    {
        const std::size_t begin = offset < bytes_ ? offset : bytes_;
        const std::size_t rest = bytes_ - begin;
        if (!is_over_) {
            // After an error nothing is left to wait for in these bytes either.
            is_over_ = begin == 0 && n >= rest;
            if (csync(dst_ + begin, n < rest ? n : rest) != 0)
                throw std::system_error(errno, std::generic_category(), "copy");
        }
        return dst_ + begin;
    }

    /** Waits for all bytes; otherwise as above. */
    unsigned char *sync() { return sync(0, bytes_); }

    /** Bytes of the copy. */
    std::size_t size() const noexcept { return bytes_; }

private:
    void finish() noexcept
    {
        // A sync of bytes that are over would wait for later copies into them.
        if (!is_over_)
            csync(dst_, bytes_);
        is_over_ = true;
    }

    unsigned char *dst_ = nullptr;
    std::size_t bytes_ = 0;
    bool is_over_ = true;
};

/**
 * Bytes that are received from a socket in the process's default queue. Its end waits for them.
 *
 * Until then nothing else may use them, except after sync(), or receive from the socket.
 */
class pending_receive {
public:
    /**
     * Receives what the socket has, at most n bytes. Throws std::system_error: EAGAIN if that is
     * nothing and the socket is non-blocking.
     */
    pending_receive(int sockfd, void *buf, std::size_t n, int flags = 0)
        : buf_(static_cast<unsigned char *>(buf))
    {
        const ssize_t got =
            copier_arecv_on(sockfd, buf, n, flags, -1, nullptr, &descr_, nullptr, COPIER_SITE);
        if (got < 0)
            throw std::system_error(errno, std::generic_category(), "receive");
        bytes_ = static_cast<std::size_t>(got);
    }

    pending_receive(const pending_receive &) = delete;
    pending_receive &operator=(const pending_receive &) = delete;

    /** Waits for the bytes. An error is lost here: call sync() to see it. */
    ~pending_receive() { _csync(0, bytes_, -1, &descr_, nullptr); }

    /**
     * Waits for n bytes from offset on, or for those that come, and returns their address. Throws
     * std::system_error: ENODATA, or the socket's error.
     */
    unsigned char *sync(std::size_t offset, std::size_t n)
    {
        const std::size_t begin = offset < bytes_ ? offset : bytes_;
        if (_csync(begin, n, -1, &descr_, nullptr) != 0)
            throw std::system_error(errno, std::generic_category(), "receive");
        return buf_ + begin;
    }

    /** Waits for all bytes; otherwise as above. */
    unsigned char *sync() { return sync(0, bytes_); }

    /** Number of bytes; 0 is the end of the stream. */
    std::size_t size() const noexcept { return bytes_; }

private:
    unsigned char *buf_;
    std::size_t bytes_ = 0;
    copier_descr descr_ = copier_descr();
};

/**
 * Bytes that are sent to a socket in the process's default queue. Its end waits until the socket has
 * taken them, or gives them up after abort().
 */
class pending_send {
public:
    /**
     * Sends n bytes, at most 4 MiB. Throws std::system_error if they are sent at once and the socket
     * does not take them.
     */
    pending_send(int sockfd, const void *buf, std::size_t n, int flags = 0)
    {
        const ssize_t sent =
            copier_asend_on(sockfd, buf, n, flags, -1, nullptr, &descr_, nullptr, COPIER_SITE);
        if (sent < 0)
            throw std::system_error(errno, std::generic_category(), "send");
        bytes_ = static_cast<std::size_t>(sent);
    }

    pending_send(const pending_send &) = delete;
    pending_send &operator=(const pending_send &) = delete;

    /** An error is lost here: call wait() to see it. */
    ~pending_send() { _csync(0, bytes_, -1, &descr_, nullptr); }

    /** Waits until the socket has taken the bytes. Throws std::system_error: the socket's error. */
    void wait()
    {
        if (_csync(0, bytes_, -1, &descr_, nullptr) != 0)
            throw std::system_error(errno, std::generic_category(), "send");
    }

    /** Gives up what the socket has not taken. */
    void abort() noexcept { copier_abort(&descr_, -1); }

    /** Number of bytes that are sent. */
    std::size_t size() const noexcept { return bytes_; }

private:
    std::size_t bytes_ = 0;
    copier_descr descr_ = copier_descr();
};

} // namespace unlade

#endif // UNLADE_COPIER_HPP
