/*
 * A copy of libunlade_copier as a C++ object, for C++11 and later. See unlade_copier(3).
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

} // namespace unlade

#endif // UNLADE_COPIER_HPP
