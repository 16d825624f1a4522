! Module pagurus: pagurus.h for Fortran. Compile this file with the program, and link with -lpagurus:
!
!   gfortran -o program /usr/include/pagurus.f90 program.f90 -lpagurus
module pagurus
  use, intrinsic :: iso_c_binding
  implicit none
  public

  integer(c_int), parameter :: PAGURUS_OK = 0, PAGURUS_NONE = 1, PAGURUS_INVALID = 2, PAGURUS_REFUSED = 3
  integer(c_int), parameter :: PAGURUS_BUSY = 4, PAGURUS_LATE = 5, PAGURUS_FAULT = 6
  integer(c_int), parameter :: PAGURUS_ME = 0, PAGURUS_JOB = 1
  integer(c_int), parameter :: PAGURUS_BETTER = 0, PAGURUS_AWAY = 1, PAGURUS_WITH_RANK = 2
  integer(c_int), parameter :: PAGURUS_NOTE = 0, PAGURUS_WARNING = 1, PAGURUS_ILL = 2

  type, bind(c) :: pagurus_place
    character(kind=c_char) :: job(32), guest(40), host(128), site(128)
    integer(c_int) :: guests, here, cpus
    real(c_double) :: load
  end type

  integer(c_int), parameter :: PAGURUS_SAME_HOST = 0, PAGURUS_SAME_SITE = 1, PAGURUS_ELSEWHERE = 2

  type, bind(c) :: pagurus_distance
    character(kind=c_char) :: guest(40), host(128)
    integer(c_int) :: place
    real(c_double) :: latency, bandwidth
  end type

  type, bind(c) :: pagurus_price
    character(kind=c_char) :: to(128)
    real(c_double) :: seconds, seconds_low, seconds_high, downtime
    integer(c_long_long) :: bytes
    integer(c_int) :: converges
  end type

  type, bind(c) :: pagurus_growth
    integer(c_int) :: guests, first, slots
    character(kind=c_char) :: hosts(256)
  end type

  interface
    integer(c_int) function pagurus_grow(guests, seconds, growth) bind(c)
      import :: c_int, c_double, pagurus_growth
      integer(c_int), value :: guests
      real(c_double), value :: seconds
      type(pagurus_growth), intent(out) :: growth
    end function
    integer(c_int) function pagurus_grow_ranks(ranks, seconds, growth) bind(c)
      import :: c_int, c_double, pagurus_growth
      integer(c_int), value :: ranks
      real(c_double), value :: seconds
      type(pagurus_growth), intent(out) :: growth
    end function
    integer(c_int) function pagurus_where(place) bind(c)
      import :: c_int, pagurus_place
      type(pagurus_place), intent(out) :: place
    end function
    integer(c_int) function pagurus_neighbours(places, most, count) bind(c)
      import :: c_int, pagurus_place
      type(pagurus_place), intent(out) :: places(*)
      integer(c_int), value :: most
      integer(c_int), intent(out) :: count
    end function
    integer(c_int) function pagurus_distances(others, most, count) bind(c)
      import :: c_int, pagurus_distance
      type(pagurus_distance), intent(out) :: others(*)
      integer(c_int), value :: most
      integer(c_int), intent(out) :: count
    end function
    integer(c_int) function pagurus_cost(what, price) bind(c)
      import :: c_int, pagurus_price
      integer(c_int), value :: what
      type(pagurus_price), intent(out) :: price
    end function
    integer(c_int) function pagurus_cost_at_mark(what, price) bind(c)
      import :: c_int, pagurus_price
      integer(c_int), value :: what
      type(pagurus_price), intent(out) :: price
    end function
    integer(c_int) function pagurus_move(what, how, rank) bind(c)
      import :: c_int
      integer(c_int), value :: what, how, rank
    end function
    integer(c_int) function pagurus_checkpoint() bind(c)
      import :: c_int
    end function
    integer(c_int) function pagurus_cheap_now() bind(c)
      import :: c_int
    end function
    ! call it with c_loc(array), and c_sizeof(array); the array is a target, and allocated
    integer(c_int) function pagurus_scratch(memory, length) bind(c)
      import :: c_int, c_ptr, c_size_t
      type(c_ptr), value :: memory
      integer(c_size_t), value :: length
    end function
    integer(c_int) function pagurus_scratch_end(memory) bind(c)
      import :: c_int, c_ptr
      type(c_ptr), value :: memory
    end function
    integer(c_int) function pagurus_not_now(seconds) bind(c)
      import :: c_int, c_double
      real(c_double), value :: seconds
    end function
    integer(c_int) function pagurus_remark_c(level, says) bind(c, name="pagurus_remark")
      import :: c_int, c_char
      integer(c_int), value :: level
      character(kind=c_char), intent(in) :: says(*)
    end function
  end interface

contains

  ! A remark, as Fortran has texts.
  integer(c_int) function pagurus_remark(level, says) result(code)
    integer(c_int), intent(in) :: level
    character(*), intent(in) :: says
    code = pagurus_remark_c(level, trim(says) // c_null_char)
  end function

  ! A text of a pagurus_place, pagurus_price or pagurus_growth, as Fortran has it.
  function pagurus_string(c) result(text)
    character(kind=c_char), intent(in) :: c(:)
    character(:), allocatable :: text
    integer :: i
    text = ""
    do i = 1, size(c)
      if (c(i) == c_null_char) exit
      text = text // c(i)
    end do
  end function
end module
