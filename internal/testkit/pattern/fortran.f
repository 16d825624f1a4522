      program pattern
      include 'mpif.h'
      integer rank, ranks, next, before, i, ierr
      integer status(MPI_STATUS_SIZE)
      real out(10), in(10)
      call MPI_INIT(ierr)
      call MPI_COMM_RANK(MPI_COMM_WORLD, rank, ierr)
      call MPI_COMM_SIZE(MPI_COMM_WORLD, ranks, ierr)
      next = mod(rank + 1, ranks)
      before = mod(rank + ranks - 1, ranks)
      out = 1
      do i = 1, 3
        call MPI_SENDRECV(out, 10, MPI_REAL, next, 1, in, 10, MPI_REAL,
     &    before, 1, MPI_COMM_WORLD, status, ierr)
      end do
      call MPI_BARRIER(MPI_COMM_WORLD, ierr)
      call MPI_FINALIZE(ierr)
      end
